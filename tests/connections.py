"""Connections in memory: this server's HTTP protocol on a transport that only remembers what was written."""

from __future__ import annotations

import asyncio
import http.client
import io
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from app.http.connection.connection import HttpProtocol, Take
from app.http.connection.idle_connections import IdleConnections

App = Callable[[Any, Any, Any], Awaitable[None]]


class Transport(asyncio.Transport):
    """A connection whose other side is the test. Once it is lost or our side has ended, a write raises, as uvloop's."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closing = False
        self.lost = False
        self.ended = False
        self.unsent = 0
        self._reads = True
        self.wrote = asyncio.Event()

    @property
    def written(self) -> bytes:
        return b"".join(self.writes)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name in ("sockname", "peername") else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        if self.lost:
            raise RuntimeError("the handler is closed")
        if self.ended:
            raise RuntimeError("Cannot call write() after write_eof()")
        self.writes.append(data)
        self.wrote.set()

    def is_closing(self) -> bool:
        return self.closing

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closing = True
        self.wrote.set()

    def abort(self) -> None:
        self.close()
        self.lost = True

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True

    def reading(self) -> bool:
        return self._reads


class Clock:
    """A loop whose timers go off when the test lets time pass. All else is the running loop's."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[Timer] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio.get_running_loop(), name)

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Timer:
        self.timers.append(Timer(self, self.now + delay, partial(callback, *args)))
        return self.timers[-1]

    def pass_s(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer.at <= end]:
            timer = min(due, key=lambda one: one.at)
            timer.cancel()
            self.now = timer.at
            timer.callback()
        self.now = end


@dataclass(eq=False)
class Timer:
    clock: Clock
    at: float
    callback: Callable[[], object]

    def cancel(self) -> None:
        if self in self.clock.timers:
            self.clock.timers.remove(self)


def left_to_asgi(*request: object) -> None:
    """Takes no request from ASGI."""


class Connection:
    """A protocol with an application behind it and a Transport before it. `state` is the lifespan's."""

    def __init__(
        self, app: App, take: Take | None = None, state: dict[str, Any] | None = None, loop: Any = None,
        keep_alive_s: int = 5,
    ) -> None:  # fmt: skip
        # Not access_log=False: that would silence uvicorn's access logger for the whole process, and other tests.
        config = uvicorn.Config(
            app, http=HttpProtocol, interface="asgi3", log_config=None, timeout_keep_alive=keep_alive_s, ws="none"
        )
        config.load()
        self.state = ServerState()
        self.transport = Transport()
        self.protocol = HttpProtocol(
            config, self.state, state or {}, loop or asyncio.get_running_loop(), take=take or left_to_asgi,
            body_timeout_s=30, idle=IdleConnections(keep_alive_s, sys.maxsize), hold=lambda more: None,
        )  # fmt: skip
        self.protocol.access_log = False
        self.protocol.connection_made(self.transport)

    def send(self, data: bytes) -> None:
        self.protocol.data_received(data)

    def hang_up(self) -> None:
        self.transport.closing = self.transport.lost = True
        self.protocol.connection_lost(ConnectionResetError())

    async def done(self) -> None:
        """Until no task answers a request."""
        async with asyncio.timeout(10):
            while self.state.tasks:
                await asyncio.wait(self.state.tasks)


def parsed(written: bytes, method: str = "POST") -> tuple[int, dict[str, str], bytes]:
    """Status, headers (names in lower case) and body of one answer."""

    class Socket:
        def makefile(self, mode: str) -> io.BytesIO:
            return io.BytesIO(written)

    answer = http.client.HTTPResponse(Socket(), method=method)  # type: ignore[arg-type]
    answer.begin()
    body = answer.read()
    return answer.status, {name.lower(): value for name, value in answer.getheaders()}, body
