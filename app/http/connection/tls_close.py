"""Closes TLS connections whose clients do not answer close_notify.

asyncio sends close_notify and waits up to 30 s for the client's. A client that keeps an idle connection in a pool does
not read from it, so a server that shuts down would wait all that time.
"""

from __future__ import annotations

import asyncio
import struct

_WAIT_S = 1.0  # a client that reads has answered by then


class TlsClose:
    """Aborts one closing TLS connection after a second, or later while written bytes have not reached the client."""

    __slots__ = ("_loop", "_timer", "_transport")

    def __init__(self, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
        self._loop = loop
        self._transport = transport
        self._timer = loop.call_later(_WAIT_S, self._abort)

    def cancel(self) -> None:
        """The connection is closed."""
        self._timer.cancel()

    def _abort(self) -> None:
        if _unsent(self._transport):
            self._timer = self._loop.call_later(_WAIT_S, self._abort)
        else:
            self._transport.abort()


def _unsent(transport: asyncio.Transport) -> int:
    """Bytes that the client's system has not acknowledged yet; 0 if that cannot be found out.

    Bytes in the transport's own buffer are not counted, but that is empty whenever the kernel's queue is.
    """
    try:
        import fcntl  # of Unix alone
        import termios

        descriptor = transport.get_extra_info("socket").fileno()
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    except (AttributeError, ImportError, OSError):
        return 0
    return int(count)
