"""How a TLS connection closes when its client does not answer.

TLS says that it closes, and waits up to 30 s for the other side to say so, too. A client that keeps an idle connection
for later does not read from it, and a server that is told to stop would wait for it.
"""

from __future__ import annotations

import asyncio
import struct

_WAIT_S = 1.0  # a client that reads at all has answered by then


class Farewell:
    """Closes one TLS connection: asks, and after a while cuts it, once what was written has reached the client."""

    __slots__ = ("_loop", "_timer", "_transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer = loop.call_later(_WAIT_S, self._cut)

    def cancel(self) -> None:
        """The connection has gone."""
        self._timer.cancel()

    def _cut(self) -> None:
        if _unsent(self._transport):
            self._timer = self._loop.call_later(_WAIT_S, self._cut)
        else:
            self._transport.abort()


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client's system has not taken yet; 0 where that cannot be asked.

    What the transport itself still holds is not seen, but it holds nothing while the kernel's queue is empty.
    """
    try:
        import fcntl  # of Unix alone
        import termios

        descriptor = transport.get_extra_info("socket").fileno()
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    except (AttributeError, ImportError, OSError):
        return 0
    return int(count)
