"""Load on a served model in this process: calls at Poisson instants, or a number of calls always in flight.

Latencies count from the intended instant. The calls share the event loop with the engine, as those of a server do.
"""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from app.contract import Answer, Array, Klass, Lease, ModelCall
from app.errors import StarlingError
from experiments.gpu.blocks import Data
from loadtest.generator import alarm
from loadtest.generator.alarm import clock
from loadtest.generator.run import without_collections

_LEAD_NS = 2_000_000
_BURST = 64  # calls sent in one turn of the loop
_PATIENCE_S = 10.0  # after the load, for what is still in flight

Rows = tuple[Sequence[Array], Mapping[str, int]]  # the inputs of a call, and the lengths of its axes


class Leases(Protocol):
    """A served model, or something that stands for the version which serves now."""

    def lease(self, asked: ModelCall) -> Lease: ...


class _Waiter:
    """One call: takes its answer on the event loop, as the HTTP connection does."""

    __slots__ = ("begun", "lease", "load")

    def __init__(self, load: _Load, lease: Lease, begun: int) -> None:
        self.load, self.lease, self.begun = load, lease, begun

    def set_result(self, answer: Answer, /) -> None:
        answer.outputs  # noqa: B018  cut out of the batch, as an encoder would
        self.lease.close()
        self.load.ended(clock() - self.begun)

    def set_exception(self, error: BaseException, /) -> None:
        self.lease.close()
        self.load.failed(error)


class _Load:
    def __init__(self, served: Leases, calls: Sequence[Rows], klass: Klass | None) -> None:
        self.latencies = array("q")
        self.faults: Counter[str] = Counter()
        self.sent = 0
        self.flying = 0
        self.over = False
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.last = clock()
        self._served, self._calls, self._klass = served, calls, klass
        self._rows = len(calls[0][0][0])

    def send(self, begun: int) -> None:
        inputs, lengths = self._calls[self.sent % len(self._calls)]
        self.sent += 1
        try:
            lease = self._served.lease(ModelCall(self._rows, [*inputs], dict(lengths), klass=self._klass))
        except StarlingError as exc:
            self.faults[type(exc).__name__] += 1
            return
        self.flying += 1
        lease.submit(_Waiter(self, lease, begun))

    def ended(self, ns: int) -> None:
        self.latencies.append(ns)
        self._left()

    def failed(self, error: BaseException) -> None:
        self.faults[type(error).__name__] += 1
        self._left()

    def _left(self) -> None:
        self.flying -= 1
        self.last = clock()
        if self.over and not self.flying and not self.done.done():
            self.done.set_result(None)

    async def rest(self) -> None:
        """Wait for what is in flight."""
        self.over = True
        if self.flying:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await asyncio.shield(self.done)
            except TimeoutError:
                self.faults["no answer"] += self.flying

    def figures(self, seconds: float) -> Data:
        done = np.array(self.latencies, np.float64) / 1e6
        found: Data = {"calls": self.sent, "rows_s": round(len(done) * self._rows / max(seconds, 1e-9), 1)}
        if len(done):
            p50, p99 = np.percentile(done, (50, 99))
            found |= {"mean_ms": _r(done.mean()), "p50_ms": _r(p50), "p99_ms": _r(p99), "max_ms": _r(done.max())}
        if self.faults:
            found["faults"] = dict(self.faults)
        return found


def _r(ms: float) -> float:
    return round(float(ms), 4)


class Rate(NamedTuple):
    """Poisson arrivals, so many calls a second."""

    per_s: float
    seed: int = 0


async def open_loop(
    served: Leases, calls: Sequence[Rows], rate: Rate, seconds: float, klass: Klass | None = None
) -> Data:
    """Latencies of calls at Poisson instants."""
    count = max(3, round(rate.per_s * seconds))
    gaps = np.random.default_rng([rate.seed, 7]).exponential(1e9 / rate.per_s, count)
    load, at = _Load(served, calls, klass), 0
    instants: list[int] = []
    sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ring() -> None:
        nonlocal at
        last = min(at + _BURST, count)
        while at < last and instants[at] <= clock():
            load.send(instants[at])
            at += 1
        if at < count:
            timer.set(instants[at])
        elif not sent.done():
            sent.set_result(None)

    timer = alarm.make(ring)
    with without_collections():
        begun = clock() + _LEAD_NS
        instants += (begun + np.cumsum(gaps)).astype(np.int64).tolist()
        timer.set(instants[0])
        try:
            await sent
            await load.rest()
        finally:
            timer.close()
    return {"rate": round(rate.per_s, 1), **load.figures((load.last - begun) / 1e9)}


class Closed:
    """Calls always in flight while it is entered: `async with Closed(...) as load`, then `load.found`."""

    def __init__(self, served: Leases, calls: Sequence[Rows], in_flight: int, klass: Klass | None = None) -> None:
        self._given: Any = (served, calls, klass)
        self._in_flight = in_flight
        self.found: Data = {}

    async def __aenter__(self) -> Closed:
        self.load = _Again(*self._given)
        self.begin()
        for _ in range(self._in_flight):
            self.load.send(clock())
        return self

    def begin(self) -> None:
        """Count from now on."""
        self._begun, self._counted = clock(), len(self.load.latencies)

    def rows_s(self) -> float:
        """Rows a second since `begin`."""
        ended = len(self.load.latencies) - self._counted
        return round(ended * self.load.rows / max(1e-9, (clock() - self._begun) / 1e9), 1)

    async def __aexit__(self, *exc: object) -> None:
        rate = self.rows_s()
        seconds = (clock() - self._begun) / 1e9
        await self.load.rest()
        del self.load.latencies[: self._counted]
        self.found = {**self.load.figures(seconds), "rows_s": rate}


class _Again(_Load):
    """Sends the next call when one has ended."""

    @property
    def rows(self) -> int:
        return self._rows

    def _left(self) -> None:
        super()._left()
        if not self.over:
            self.send(clock())


async def closed_loop(
    served: Leases, calls: Sequence[Rows], in_flight: int, seconds: float, klass: Klass | None = None
) -> Data:
    """The most rows a second, with so many calls in flight, and their latencies. A third of the time warms up."""
    with without_collections():
        async with Closed(served, calls, in_flight, klass) as load:
            await asyncio.sleep(seconds / 3)
            load.begin()
            await asyncio.sleep(seconds)
    return load.found


def ids(count: int, tokens: int, rows: int = 1, seed: int = 0) -> list[Rows]:
    """Calls of int32 ids, all of one length."""
    random = np.random.default_rng([seed, 1])
    return [((random.integers(1, 10_000, (rows, tokens), dtype=np.int32),), {}) for _ in range(count)]


def ids_of(lengths: Sequence[int], axis: str, seed: int = 0) -> list[Rows]:
    """Calls of one row of int32 ids, each of its own length along this axis."""
    random = np.random.default_rng([seed, 2])
    return [((random.integers(1, 10_000, (1, n), dtype=np.int32),), {axis: int(n)}) for n in lengths]
