"""Searches the largest rate that meets a latency objective: doubles until it is missed, then halves the gap."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np

from .plan import BenchPlan
from .run import LAG_P99_MS, LAG_SHARE, Lagging, Result, Session
from .stats import Repeat, percentile

PRECISION = 0.05  # of the rate; repeats of the same rate scatter as much
_DOUBLINGS = 24
_STEPS_DOWN = 8  # steps of PRECISION: down to two thirds of the rate of a single run
#: Seconds by which latency may grow per second. If a server is overloaded by a share x, latency grows by x. That is
#: visible even in runs that are too short to miss the objective.
_GROWTH = 0.02
_THROUGHPUT = 0.95  # of the offered rate; answers after the end reduce it
_LAG = "the load generator was late"


@dataclass(frozen=True, slots=True)
class Try:
    """One tried rate. `why`: the reason why it missed the objective; empty if it met it."""

    rate: float
    p99_ms: float | None
    throughput: float
    why: str

    @property
    def kept(self) -> bool:
        return not self.why


@dataclass(frozen=True, slots=True)
class Peak:
    """`result`: measured at the largest rate that meets the objective, with all repeats."""

    result: Result
    tries: tuple[Try, ...]


def judge(repeat: Repeat, rate: float, slo_ms: float) -> Try:
    """Whether this run meets the objective."""
    p99 = percentile(repeat.completed, 0.99)
    throughput = len(repeat.completed) / repeat.elapsed_s
    return Try(rate, p99, throughput, _why(repeat, p99, throughput, slo_ms))


def _why(repeat: Repeat, p99: float | None, throughput: float, slo_ms: float) -> str:
    if repeat.errors:
        return ", ".join(f"{count} x {kind}" for kind, count in repeat.errors.most_common(2))
    assert p99 is not None  # there are requests, and no errors
    if p99 > slo_ms:
        served = percentile(repeat.unlagged, 0.99) or 0.0
        own = served <= slo_ms and p99 - served > max(LAG_P99_MS, LAG_SHARE * slo_ms)
        return f"{_LAG}: {p99 - served:.1f} ms" if own else f"99th percentile above {slo_ms:g} ms"
    growth = _growth(repeat)
    if growth > _GROWTH:
        return f"latency grows by {growth * 1000:.0f} ms a second"
    if throughput < _THROUGHPUT * len(repeat.intended_ns) / repeat.duration_s:
        return "answers are fewer than requests"
    return ""


def _growth(repeat: Repeat) -> float:
    """Growth of latency in seconds per second, from the second to the last quarter of the run."""
    quarter = np.minimum(repeat.intended_ns * 4 // round(repeat.duration_s * 1e9), 3)
    served = repeat.unlagged
    early, late = served[quarter == 1], served[quarter == 3]
    if not len(early) or not len(late):
        return 0.0
    return float(late.mean() - early.mean()) / (repeat.duration_s / 2 * 1e9)


async def search(probe: Callable[[float], Awaitable[Try]], start: float) -> tuple[Try | None, Try]:
    """The largest rate that met the objective (None if none did) and the smallest that missed it, PRECISION apart."""
    low: Try | None = None
    high: Try | None = None
    rate = start
    for _ in range(_DOUBLINGS):
        tried = await probe(rate)
        if tried.kept:
            low, rate = tried, rate * 2
        else:
            high, rate = tried, rate / 2
        if low is not None and high is not None:
            break
    if high is None:
        raise ValueError(f"rate: no limit was found up to {rate / 2:.0f}/s")
    while low is not None and high.rate > low.rate * (1 + PRECISION):
        tried = await probe(math.sqrt(low.rate * high.rate))
        low, high = (tried, high) if tried.kept else (low, tried)
    return low, high


async def find_peak(plan: BenchPlan, slo_ms: float, report: Callable[[Try], None]) -> Peak:
    """Search the peak, calling `report` for each tried rate.

    Raises Unusable, Lagging if this process was the limit, with what it measured at the best rate, and ValueError if
    no rate meets the objective.
    """
    tries: list[Try] = []
    async with Session(plan) as session:
        await session.warm()
        start = 0.5 / await session.lone()

        async def probe(rate: float) -> Try:
            repeat = await session.once(replace(plan, rate=rate), plan.seed, plan.duration_s)
            tries.append(judge(repeat, rate, slo_ms))
            report(tries[-1])
            if not tries[-1].kept:
                await session.settle()
            return tries[-1]

        low, high = await search(probe, start)
        if high.why.startswith(_LAG):
            lagging = (
                f"lag: the load generator, not the server, was the limit at {high.rate:.1f}/s: {high.why}. The peak "
                "may be higher. Give the generator a core or a machine of its own"
            )
            if low is None:
                raise Lagging(lagging)
            raise Lagging(lagging, await session.repeats(replace(plan, rate=low.rate)))
        if low is None:
            raise ValueError(f"slo_ms: no rate keeps {slo_ms:g} ms; at {tries[-1].rate:.2g}/s: {tries[-1].why}")
        rate = low.rate
        for _ in range(_STEPS_DOWN):  # while the repeats miss the objective, the peak is lower
            result = await session.repeats(replace(plan, rate=rate))
            p99 = result.figures["p99_ms"]
            if p99 is not None and p99 <= slo_ms and not result.errors:
                return Peak(result, tuple(tries))
            fault = f"{sum(result.errors.values())} errors" if result.errors else f"99th percentile above {slo_ms:g} ms"
            why = f"{fault} over {plan.repeats} repeats"
            tries.append(Try(rate, p99, result.figures["throughput"] or 0.0, why))
            report(tries[-1])
            await session.settle()
            rate /= 1 + PRECISION
    raise ValueError(
        f"slo_ms: the repeats kept {slo_ms:g} ms at no rate down to {rate:.1f}/s: the peak does not hold still"
    )
