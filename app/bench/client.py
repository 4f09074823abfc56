"""A pool of keep-alive connections to one server, and a log of its requests, with little Python per request.

A request takes the connection that became free last, so that as few connections are used as are needed. If none is
free, it waits in the pool, and another connection is opened, up to the limit. The wait is part of the latency and is
reported separately. All waits are bounded: a request without an answer after the time limit has failed, and its
connection is closed.
"""

from __future__ import annotations

import asyncio
import ssl
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from .alarm import clock
from .http import Malformed, Response, ResponseParser
from .plan import Target

_MAX_WAITING = 65_536  # requests without a connection; further ones fail
_SWEEP_S = 0.25  # interval of the time limit's check, by which a request may exceed it
_OK = 200
_LEAST_GROWTH = 1024  # requests

Note = Callable[[int, Response], int]
OnEnd = Callable[[int, str], int]  # see Pool.begin
NO_REQUEST = -1


class Log:
    """The requests of one run by number. Times are integer ns on `clock`, 0 if the event did not happen.

    `intended`: when it should be sent; `offered`: when it was handed to the pool; `sent`: when it was written to a
    connection; `ended`: when the last byte of its answer arrived. `status`: of HTTP, 0 without an answer. `answers`:
    the numbers that `note` returned. `faults`: why there is no right answer, by request. `heads`: `Response.head` of
    the answers with status 200, which is read after the run.
    """

    def __init__(self, intended: Sequence[int], picks: Sequence[int]) -> None:
        zeros = bytes(8 * len(intended))
        self.intended = array("q", intended)
        self.picks = array("q", picks)  # which body
        self.offered, self.sent, self.ended = array("q", zeros), array("q", zeros), array("q", zeros)
        self.status, self.answers = array("q", zeros), array("q", zeros)
        self.heads = [b""] * len(intended)
        self.faults: dict[int, str] = {}
        self.finished = 0
        self._count = len(intended)

    def add(self, now: int, pick: int) -> int:
        """Add a request that is intended now; returns its number."""
        number = self._count
        if number == len(self.intended):
            self._grow()
        self.intended[number] = now
        self.picks[number] = pick
        self._count += 1
        return number

    def _grow(self) -> None:
        """Enlarge the columns in large steps, which is cheaper than appending to each one for each request."""
        more = max(_LEAST_GROWTH, self._count)
        zeros = bytes(8 * more)
        for column in self._columns():
            column.frombytes(zeros)
        self.heads += [b""] * more

    def trim(self) -> None:
        """Cut the columns after the last request, when no more will be added."""
        for column in self._columns():
            del column[self._count :]
        del self.heads[self._count :]

    def _columns(self) -> tuple[array[int], ...]:
        return self.intended, self.picks, self.offered, self.sent, self.ended, self.status, self.answers


class Connection(asyncio.Protocol):
    """A connection, which has one request at a time."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._parser = ResponseParser()
        self._answering = False  # an answer has begun
        self.served = 0
        self.request = NO_REQUEST  # its number; -1: free
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def send(self, request: int, payload: bytes) -> None:
        self.request = request
        self._answering = False
        self.transport.write(payload)

    def data_received(self, data: bytes) -> None:
        now = clock()
        if self.request < 0:  # an answer without a request, such as a 408 to an idle connection
            self.close()
            return
        self._answering = True
        try:
            response = self._parser.feed(data)
        except Malformed as exc:
            self._pool.lost(self, f"malformed: {exc}")
            return
        if response is not None:
            self._pool.answered(self, response, now)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.request < 0:
            self._pool.forget(self)
            return
        response = self._parser.eof()
        if response is not None:
            self._pool.answered(self, response, clock())
            self._pool.forget(self)
        elif self.served and not self._answering:
            self._pool.retry(self)
        else:
            self._pool.lost(self, "closed: the connection ended before the answer")

    def close(self) -> None:
        self.request = NO_REQUEST
        self._pool.forget(self)
        self.transport.abort()


class Pool:
    """Connections for several runs. An async context manager, which closes them at the end.

    A Log's `picks` are indices into `payloads`. `note` numbers the answers with status 200.
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
        self._waiting: deque[int] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._retried: set[int] = set()
        self._sweeper: asyncio.TimerHandle | None = None
        self._log = Log((), ())
        self._on_end: OnEnd = _nothing
        self.most = 0  # largest number of open connections

    async def __aenter__(self) -> Self:
        self._sweep()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._on_end = _nothing
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        if self._opening:
            await asyncio.wait(self._opening)
        for connection in tuple(self._all):
            connection.close()

    def begin(self, log: Log, on_end: OnEnd) -> None:
        """Begin a run: request numbers are those of this log. All requests of the run before must have ended.

        `on_end(request, fault)` is called when a request has ended. It returns the request to send next, -1 if none.
        """
        self._log, self._on_end = log, on_end
        self._retried.clear()

    def offer(self, request: int) -> None:
        """Send a request now, or as soon as a connection is free."""
        if self._free:
            self._send(self._free.pop(), request)
            return
        self._log.offered[request] = clock()
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
            self._give(connection, self._waiting.popleft())
        else:
            self._free.append(connection)

    def _give(self, connection: Connection, request: int) -> None:
        self._log.sent[request] = clock()
        connection.send(request, self._payloads[self._log.picks[request]])

    def _send(self, connection: Connection, request: int) -> None:
        """Send a request that has not waited."""
        log = self._log
        log.offered[request] = log.sent[request] = clock()
        connection.send(request, self._payloads[log.picks[request]])

    def answered(self, connection: Connection, response: Response, now: int) -> None:
        request, log = connection.request, self._log
        connection.request = NO_REQUEST
        connection.served += 1
        log.ended[request] = now
        log.status[request] = response.status
        fault = ""
        if response.status == _OK:
            log.answers[request] = self._note(log.picks[request], response)
            log.heads[request] = response.head
        else:
            words = response.body[:200].decode("utf-8", "replace")
            fault = log.faults[request] = f"status {response.status}: {words}"
        log.finished += 1
        following = self._on_end(request, fault)
        if response.keep and following >= 0 and not self._waiting:  # in a closed loop, almost always
            self._send(connection, following)
            return
        if response.keep:
            self._next(connection)
        else:
            connection.close()
            self._grow()
        self._offer_following(following)

    def _offer_following(self, request: int) -> None:
        if request >= 0:
            self.offer(request)

    def lost(self, connection: Connection, fault: str) -> None:
        """The request of this connection has failed without an answer."""
        request = connection.request
        connection.close()
        self._grow()
        self._fail(request, fault)

    def retry(self, connection: Connection) -> None:
        """Retry a request whose used connection was closed before any answer, as idle ones are (RFC 9112, 9.3.1)."""
        request = connection.request
        if request in self._retried:
            self.lost(connection, "closed: twice before the answer")
            return
        self._retried.add(request)
        connection.close()
        if self._free:
            self._give(self._free.pop(), request)
        else:
            self._waiting.appendleft(request)
            self._grow()

    def forget(self, connection: Connection) -> None:
        if connection in self._all:
            self._all.remove(connection)
            if connection in self._free:
                self._free.remove(connection)

    def _fail(self, request: int, fault: str) -> None:
        self._log.faults[request] = fault
        self._log.ended[request] = clock()
        self._log.finished += 1
        self._offer_following(self._on_end(request, fault))

    def _sweep(self) -> None:
        """Fail the requests that have waited for too long."""
        self._sweeper = asyncio.get_running_loop().call_later(_SWEEP_S, self._sweep)
        before = clock() - self._timeout_ns
        intended = self._log.intended
        fault = f"timeout: no answer after {self._timeout_ns / 1e9:g} s"
        while self._waiting and intended[self._waiting[0]] < before:
            self._fail(self._waiting.popleft(), fault)
        for connection in tuple(self._all):
            if connection.request >= 0 and intended[connection.request] < before:
                self.lost(connection, fault)


def _nothing(request: int, fault: str) -> int:
    """Used between runs."""
    return NO_REQUEST
