"""Sends requests: in an open loop at the instants of an arrival process, in a closed loop after each answer.

Open loop: latencies run from the intended instant, whatever server, client or machine do, so that a slow server cannot
delay the requests that would show its slowness (coordinated omission). Closed loop: a fixed number of requests is in
flight, and a slow server is asked less often. Both measure how late this process is.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterator

from . import alarm
from .alarm import clock
from .client import NO_REQUEST, Log, Pool

_BURST = 64  # requests sent without reading answers in between
_CHECK_NS = 10_000_000  # closed loop: interval at which it checks how late this process is
_PROGRESS_S = 1.0  # drawing a progress bar takes 2 ms; more often it would show in the 99th percentile

Progress = Callable[[float], None]  # called with the seconds since its last call


class Teller:
    """Calls a progress function now and then between `begin` and `end`; does nothing if it is None."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._told_ns = 0
        self._handle: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        self._told_ns = clock()
        if self._progress is not None:
            self._tell(self._progress)

    def _tell(self, progress: Progress) -> None:
        progress((clock() - self._told_ns) / 1e9)
        self._told_ns = clock()
        self._handle = asyncio.get_running_loop().call_later(_PROGRESS_S, self._tell, progress)

    def end(self) -> None:
        if self._handle is not None:
            self._handle.cancel()


class _Drive(ABC):
    def __init__(self, pool: Pool, log: Log, progress: Progress | None) -> None:
        self.log = log
        self.start_ns = 0
        self._pool = pool
        self._alarm = alarm.make(self._ring)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._progress = Teller(progress)
        pool.begin(log, self._ended)

    async def run(self) -> None:
        """Send all requests and wait until each has ended."""
        self._progress.begin()
        try:
            self._begin()
            await self._done
        finally:
            self.log.trim()
            self._alarm.close()
            self._progress.end()

    def _finish(self) -> None:
        if not self._done.done():
            self._done.set_result(None)

    @abstractmethod
    def _begin(self) -> None: ...

    @abstractmethod
    def _ring(self) -> None: ...

    @abstractmethod
    def _ended(self, request: int, fault: str) -> int: ...


class OpenLoop(_Drive):
    """`log.intended` holds ns from the start, which `run` replaces by instants of the clock."""

    def _begin(self) -> None:
        self._next = 0
        self._count = len(self.log.intended)
        # slightly ahead, so that the first request is not late
        self.start_ns = clock() + 5_000_000
        self.log.intended = array("q", (self.start_ns + instant for instant in self.log.intended))
        if not self._count:
            self._finish()
        else:
            self._alarm.set(self.log.intended[0])

    def _ring(self) -> None:
        intended, offer = self.log.intended, self._pool.offer
        last = min(self._next + _BURST, self._count)
        while self._next < last and intended[self._next] <= clock():
            self._next += 1
            offer(self._next - 1)
        if self._next < self._count:
            self._alarm.set(intended[self._next])

    def _ended(self, request: int, fault: str) -> int:
        if self.log.finished == self._count:
            self._finish()
        return NO_REQUEST


class ClosedLoop(_Drive):
    """`concurrency` requests in flight for `duration_s`. `lags`: how late the loop was at each check, in ns."""

    def __init__(
        self, pool: Pool, picks: Iterator[int], concurrency: int, duration_s: float, progress: Progress | None
    ) -> None:
        super().__init__(pool, Log((), ()), progress)
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
            self._pool.offer(self.log.add(clock(), next(self._picks)))

    def _ring(self) -> None:
        now = clock()
        self.lags.append(now - self._check_ns)
        self._check_ns = now + _CHECK_NS
        self._alarm.set(self._check_ns)

    def _ended(self, request: int, fault: str) -> int:
        now = clock()
        # a request that could not connect is not followed by another, which would fail at once as well
        if now - self.start_ns < self._duration_ns and not (fault and fault.startswith("connect")):
            return self.log.add(now, next(self._picks))
        self._flying -= 1
        if not self._flying:
            self._finish()
        return NO_REQUEST
