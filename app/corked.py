"""uvicorn's HTTP protocol with two things changed: an answer is one write, and a drain waits for first requests.

uvicorn writes the head of an answer when the application starts it and the body when it comes: two system calls, and
two chances for the kernel to wake the client and for a worker thread to take the interpreter lock. Holding the head of
a 200 until the body follows is worth about a seventh of the throughput of a bare echo (`loadtest/bench`).

When the server stops, uvicorn closes connections on which it has seen no request. One that was opened a moment ago has
its first request on the way, and its client would see a broken connection: such a one is given a moment.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD = b"HTTP/1.1 200"
_FIRST_REQUEST_S = 0.5


class _Corked:
    """A transport that keeps back the head of a 200 answer until the next write, which uvicorn makes at once.

    Anything else, `100 Continue` above all, goes straight through.
    """

    __slots__ = ("_held", "_transport", "_write")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._write = transport.write
        self._held: bytes | None = None

    def write(self, data: bytes) -> None:
        held = self._held
        if held is not None:
            self._held = None
            self._write(held + data)
        elif data.startswith(_HEAD):
            self._held = data
        else:
            self._write(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._flush()
        self._transport.set_protocol(protocol)

    def _flush(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            self._write(held)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class CorkedProtocol(HttpToolsProtocol):
    """HttpToolsProtocol over a corked transport, patient with a connection's first request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(_Corked(transport))  # type: ignore[arg-type]

    def shutdown(self) -> None:
        cycle: Any = self.cycle  # uvicorn declares it as always there; it is None before the first request
        if cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_REQUEST_S, super().shutdown)
        else:
            super().shutdown()
