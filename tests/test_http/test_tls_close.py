"""The end of TLS connections: a client that does not answer is cut, but not before it has what was written."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from app.http.connection.tls_close import TlsClose


class Loop:
    """The part of a loop that takes timers, which go off when the test says."""

    def __init__(self) -> None:
        self.timers: list[Any] = []

    def call_later(self, delay: float, callback: Any, *args: Any) -> Loop:
        self.timers.append(callback)
        return self

    def cancel(self) -> None:
        self.timers.clear()

    def pass_by(self) -> None:
        self.timers.pop()()


class Transport(asyncio.Transport):
    """A connection over `sock`."""

    def __init__(self, sock: socket.socket | None) -> None:
        super().__init__({"socket": sock})
        self.cut = False

    def abort(self) -> None:
        self.cut = True


def test_what_was_written_is_read_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as theirs:
        ours, _ = listener.accept()
        with ours:
            ours.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent += ours.send(bytes(1 << 20))
            loop, transport = Loop(), Transport(ours)
            TlsClose(loop, transport)  # type: ignore[arg-type]
            for _ in range(3):
                loop.pass_by()
            assert not transport.cut
            while sent:
                sent -= len(theirs.recv(1 << 20))
            theirs.close()  # which acknowledges all of it
            loop.pass_by()
            assert transport.cut
