"""Sends requests: in an open loop at the instants of an arrival process, in a closed loop after each answer.

Open loop: latencies count from the intended instant, so that a slow server cannot delay the requests that would show
its slowness (coordinated omission). Closed loop: a fixed number of requests is in flight, so a slow server gets fewer.
Both measure how late this process itself is.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections.abc import Iterator

from . import alarm
from .alarm import clock
from .client import ConnectionPool, TimedRequest

_BURST = 64  # requests sent without reading answers in between
LEAD_NS = 5_000_000  # from the start of a run to its time 0, so that the first request is not late
_CHECK_NS = 10_000_000  # closed loop: interval at which it checks how late this process is


class Drive(ABC):
    """One run. Subclasses define what is sent at the start, when the alarm rings, and when a request has ended.

    `log`: the requests, in the order of their intended instants.
    """

    def __init__(self, pool: ConnectionPool, log: list[TimedRequest]) -> None:
        self.log = log
        self.start_ns = 0
        self._pool = pool
        self._alarm = alarm.make(self._ring)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pool.begin(self._ended)

    async def run(self) -> None:
        """Send all requests and wait until each has ended."""
        try:
            self._begin()
            await self._done
        finally:
            self._alarm.close()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _ring(self) -> None: ...

    @abstractmethod
    def _ended(self, request: TimedRequest) -> TimedRequest | None: ...


class OpenLoop(Drive):
    """The `intended` of its requests count from the start; `run` replaces them by instants of the clock."""

    def _begin(self) -> None:
        self._next = 0
        self._left = len(self.log)
        self.start_ns = clock() + LEAD_NS
        for request in self.log:
            request.intended += self.start_ns
        if not self.log:
            self._finish()
        else:
            self._alarm.set(self.log[0].intended)

    def _ring(self) -> None:
        log, offer = self.log, self._pool.offer
        last = min(self._next + _BURST, len(log))
        while self._next < last and log[self._next].intended <= clock():
            self._next += 1
            offer(log[self._next - 1])
        if self._next < len(log):
            self._alarm.set(log[self._next].intended)

    def _ended(self, request: TimedRequest) -> TimedRequest | None:
        self._left -= 1
        if not self._left:
            self._finish()
        return None


class ClosedLoop(Drive):
    """Keeps `concurrency` requests in flight for `duration_s`. `lags`: how late the loop was at each check, in ns."""

    def __init__(self, pool: ConnectionPool, picks: Iterator[int], concurrency: int, duration_s: float) -> None:
        super().__init__(pool, [])
        self._picks = picks
        self._concurrency = concurrency
        self._duration_ns = round(duration_s * 1e9)
        self._flying = concurrency
        self._check_ns = 0
        self.lags = array("q")

    def _begin(self) -> None:
        self.start_ns = clock()
        self._check_ns = self.start_ns + _CHECK_NS
        self._alarm.set(self._check_ns)
        for _ in range(self._concurrency):
            self._pool.offer(self._new(clock()))

    def _new(self, now: int) -> TimedRequest:
        request = TimedRequest(now, next(self._picks))
        self.log.append(request)
        return request

    def _ring(self) -> None:
        now = clock()
        self.lags.append(now - self._check_ns)
        self._check_ns = now + _CHECK_NS
        self._alarm.set(self._check_ns)

    def _ended(self, request: TimedRequest) -> TimedRequest | None:
        now = clock()
        # after a failed connect send no other request, which would also fail at once
        if now - self.start_ns < self._duration_ns and not request.fault.startswith("connect"):
            return self._new(now)
        self._flying -= 1
        if not self._flying:
            self._finish()
        return None
