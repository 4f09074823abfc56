"""A pool of keep-alive connections to one server, with little Python per request.

A request takes the connection that became free last, so that few connections are used. If none is free, it waits in the
pool, and another connection is opened, up to the limit. The wait is part of the latency, and also reported separately.
All waits are bounded: a request without an answer after the time limit has failed, and its connection is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from .alarm import clock
from .http import Malformed, Response, ResponseParser
from .plan import Target

_MAX_WAITING = 65_536  # requests without a connection; further ones fail
_SWEEP_S = 0.25  # interval between checks of the time limit, by which a request may exceed it
_OK = 200

Note = Callable[[int, Response], int]


@dataclass(slots=True, eq=False)
class TimedRequest:
    """One request of a run. Times are integer ns on `clock`, 0 if the event did not happen.

    `intended`: when it should be sent; `pick`: which body; `offered`: when it was handed to the pool; `sent`: when it
    was written to a connection; `ended`: when the last byte of its answer arrived. `status`: of HTTP, 0 without an
    answer; `answer`: the number that `note` returned; `head`: `Response.head` of an answer with status 200, which is
    read after the run. `fault`: why there is no right answer. `task`: the number of its load, if there are several.
    """

    intended: int
    pick: int
    task: int = 0
    offered: int = 0
    sent: int = 0
    ended: int = 0
    status: int = 0
    answer: int = 0
    head: bytes = b""
    fault: str = ""
    retried: bool = False


OnEnd = Callable[[TimedRequest], TimedRequest | None]  # see ConnectionPool.begin


class Connection(asyncio.Protocol):
    """A connection, which has one request at a time."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._parser = ResponseParser()
        self._answering = False  # whether an answer has begun
        self.served = 0
        self.request: TimedRequest | None = None  # None: free
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def send(self, request: TimedRequest, payload: bytes) -> None:
        self.request = request
        self._answering = False
        self.transport.write(payload)

    def data_received(self, data: bytes) -> None:
        now = clock()
        if self.request is None:  # an answer without a request, such as a 408 to an idle connection
            self.close()
            return
        self._answering = True
        try:
            response = self._parser.feed(data)
        except Malformed as exc:
            self._pool.lost(self, self.request, f"malformed: {exc}")
            return
        if response is not None:
            self._pool.answered(self, self.request, response, now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.request is None:
            self._pool.forget(self)
            return
        response = self._parser.eof()
        if response is not None:
            self._pool.answered(self, self.request, response, clock())
            self._pool.forget(self)
        elif self.served and not self._answering:
            self._pool.retry(self, self.request)
        else:
            self._pool.lost(self, self.request, "closed: the connection ended before the answer")

    def close(self) -> None:
        self.request = None
        self._pool.forget(self)
        self.transport.abort()


class ConnectionPool:
    """Connections for several runs. An async context manager, which closes them at the end.

    The `pick` of a request is an index into `payloads`. `note` numbers the answers with status 200.
    """

    def __init__(self, target: Target, payloads: Sequence[bytes], note: Note, *, limit: int, timeout_s: float) -> None:
        self._target = target
        self._payloads = payloads
        self._note = note
        self._limit = limit
        self._timeout_ns = round(timeout_s * 1e9)
        self._tls = ssl.create_default_context() if target.tls else None
        self._all: set[Connection] = set()
        self._free: list[Connection] = []
        self._waiting: deque[TimedRequest] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._on_end: OnEnd = lambda request: None
        self.most = 0  # largest number of open connections

    async def __aenter__(self) -> Self:
        self._sweep()
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._on_end = lambda request: None
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        for connection in tuple(self._all):
            connection.close()

    def begin(self, on_end: OnEnd) -> None:
        """Begin a run. All requests of the run before must have ended.

        `on_end(request)` is called when a request has ended. It returns the request to send next, if there is one.
        """
        self._on_end = on_end

    def offer(self, request: TimedRequest) -> None:
        """Send a request now, or as soon as a connection is free."""
        if self._free:
            self._send(self._free.pop(), request)
            return
        request.offered = clock()
        if len(self._waiting) >= _MAX_WAITING:
            self._fail(request, f"client queue: {_MAX_WAITING} requests wait for a connection")
        else:
            self._waiting.append(request)
            self._grow()

    def _grow(self) -> None:
        if len(self._opening) < len(self._waiting) and len(self._all) + len(self._opening) < self._limit:
            self._opening.add(asyncio.get_running_loop().create_task(self._open()))

    async def _open(self) -> None:
        loop, target = asyncio.get_running_loop(), self._target
        try:
            async with asyncio.timeout(self._timeout_ns / 1e9):
                _, connection = await loop.create_connection(
                    lambda: Connection(self), target.host, target.port, ssl=self._tls
                )
        except OSError as exc:  # TimeoutError is one
            if self._waiting:
                self._fail(self._waiting.popleft(), f"connect: {exc.strerror or type(exc).__name__}")
            return
        finally:
            # here, not in a done-callback: a request offered in between would rely on this connection
            self._opening.discard(asyncio.current_task())
        self._all.add(connection)
        self.most = max(self.most, len(self._all))
        self._next(connection)

    def _next(self, connection: Connection) -> None:
        """A connection has become free: give it the next waiting request."""
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def _send(self, connection: Connection, request: TimedRequest) -> None:
        request.sent = clock()
        request.offered = request.offered or request.sent  # it has not waited
        connection.send(request, self._payloads[request.pick])

    def answered(self, connection: Connection, request: TimedRequest, response: Response, now: int) -> None:
        connection.request = None
        connection.served += 1
        request.ended = now
        request.status = response.status
        if response.status == _OK:
            request.answer = self._note(request.pick, response)
            request.head = response.head
        else:
            words = response.body[:200].decode("utf-8", "replace")
            request.fault = f"status {response.status}: {words}"
        following = self._on_end(request)
        if response.keep and following is not None and not self._waiting:  # in a closed loop, almost always
            self._send(connection, following)
            return
        if response.keep:
            self._next(connection)
        else:
            connection.close()
            self._grow()
        if following is not None:
            self.offer(following)

    def lost(self, connection: Connection, request: TimedRequest, fault: str) -> None:
        """The request of this connection has failed without an answer."""
        connection.close()
        self._grow()
        self._fail(request, fault)

    def retry(self, connection: Connection, request: TimedRequest) -> None:
        """Retry a request whose used connection was closed before any answer, as idle ones are (RFC 9112, 9.3.1)."""
        if request.retried:
            self.lost(connection, request, "closed: twice before the answer")
            return
        request.retried = True
        connection.close()
        if self._free:
            self._send(self._free.pop(), request)
        else:
            self._waiting.appendleft(request)
            self._grow()

    def forget(self, connection: Connection) -> None:
        if connection in self._all:
            self._all.remove(connection)
            if connection in self._free:
                self._free.remove(connection)

    def _fail(self, request: TimedRequest, fault: str) -> None:
        request.fault = fault
        request.ended = clock()
        if (following := self._on_end(request)) is not None:
            self.offer(following)

    def _sweep(self) -> None:
        """Fail the requests that have waited for too long."""
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        before = clock() - self._timeout_ns
        fault = f"timeout: no answer after {self._timeout_ns / 1e9:g} s"
        while self._waiting and self._waiting[0].intended < before:
            self._fail(self._waiting.popleft(), fault)
        for connection in tuple(self._all):
            request = connection.request
            if request is not None and request.intended < before:
                self.lost(connection, request, fault)
