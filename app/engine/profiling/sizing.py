"""How many workers with how many threads each: candidates to measure, and which of them to suggest.

The rule: of those that leave a core to HTTP (on a GPU all do) and answer one row alone in at most twice the least time
any does, the one with the least mean latency at 0.3, 0.6 and 0.9 of the most rows per second that any of them serves;
within 5 % of that the one with the fewest workers, and of these the fewest threads. More workers than needed cost
memory and make a model run on several threads at a time. The means are those of the control tables, Poisson arrivals
(`scheduler.optimal`). `max_alive` is the rows of all running units at the size with the most rows per second: the
optimum of the measured curves never cuts larger ones (`starling optimum`).

What is measured is the model alone, so that one core is left to HTTP: see `room`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, cast

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import tables

_SLOWER = 2.0
_LOADS = (0.3, 0.6, 0.9)
_MOST = 0.98  # of what a candidate serves: beyond it the queue hardly ends
_NEAR = 1.05


@dataclass(frozen=True, slots=True)
class Candidate:
    """`workers` units at once, as the profile has measured them; of `size` rows they serve `rows_per_s`.

    `compare` adds its mean latencies at `_LOADS` of the most that any serves, or why it is not compared.
    """

    profile: ModelProfile
    workers: int
    means_ns: Sequence[float] = ()
    why_not: str = ""

    @property
    def threads(self) -> int:
        return self.profile.threads or 1

    @property
    def rows_per_s(self) -> float:
        """At best: with all workers at once, or with one less where they slow one another too much."""
        return self._best[0]

    @property
    def size(self) -> int:
        return self._best[1]

    @property
    def _best(self) -> tuple[float, int]:
        """The most rows per second, hand-overs included, and the smallest batch that gives them."""
        handover_ns = (self.profile.handover_ns or 0) * len(self.profile.parts)
        rate, least = max(
            (units * rows * 1e9 / (time + handover_ns), -rows)
            for units in {self.workers, max(1, self.workers - 1)}
            for rows, time in enumerate(self.profile.times(units), 1)
        )
        return rate, -least

    def means_at(self, rates: Sequence[float]) -> list[float]:
        """The mean latency at each of these rates, ascending, in rows per second; infinite beyond what it serves.

        Seconds of work for several workers.
        """
        stage = replace(self.profile.stage(self.workers), errors=())
        served = [rate for rate in rates if rate < _MOST * self.rows_per_s]
        loads = [rate / self.rows_per_s for rate in served]
        means = tables.solve(stage, workers=self.workers, loads=loads).mean_ns if served else ()
        return [*means, *[math.inf] * (len(rates) - len(served))]

    def to_dict(self) -> dict[str, Any]:
        return {
            "threads": self.threads,
            "workers": self.workers,
            "batch": self.size,
            "rows_per_s": round(self.rows_per_s, 2),
            "single_ms": self.profile.batch_ns[0] / 1e6,
            "mean_ms": [None if math.isinf(mean) else round(mean / 1e6, 4) for mean in self.means_ns],
            "why_not": self.why_not,
        }


def room(cores: int) -> int:
    """Cores that workers may take: all but one, which serves HTTP."""
    return max(1, cores - 1)


def pairs(cores: int) -> list[tuple[int, int]]:
    """(threads, workers) to compare: threads 1, 2, 4, ... and all cores, with one worker and with all that fit."""
    threads = sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores})
    return [(count, workers) for count in threads for workers in sorted({1, cores // count})]


def compare(candidates: Sequence[Candidate], cores: int | None) -> list[Candidate]:
    """All in this order. `cores`: room for threads; None for no bound. Without room for any it is as without a bound.

    Seconds of work for each of several workers.
    """
    fit = [one for one in candidates if cores is None or one.threads * one.workers <= cores] or candidates
    single_ns = min(one.profile.batch_ns[0] for one in fit)
    quick = [one for one in fit if one.profile.batch_ns[0] <= _SLOWER * single_ns]
    most = max(one.rows_per_s for one in quick)
    rates = [load * most for load in _LOADS]
    return [
        replace(one, means_ns=one.means_at(rates))
        if one in quick
        else replace(one, why_not="slow for one row" if one in fit else "leaves no core to HTTP")
        for one in candidates
    ]


def choose(compared: Sequence[Candidate]) -> Candidate:
    """The one to suggest, see the module's text. Raises ValueError for none."""
    found = [one for one in compared if one.means_ns]
    least = [min(means) for means in zip(*(one.means_ns for one in found), strict=True)]

    def over(one: Candidate) -> float:
        """Its means over the least of any, on average."""
        return fmean(mean / best for mean, best in zip(one.means_ns, least, strict=True))

    best = min(map(over, found))
    near = [one for one in found if over(one) <= _NEAR * best]
    return min(near, key=lambda one: (one.workers, one.threads))


def suggestion(chosen: Candidate, max_batch: int, push_depth: int) -> dict[str, Any]:
    """The settings that follow, as a profile stores them."""
    return {
        "workers": [max_batch] * chosen.workers,
        "threads": chosen.threads,
        "max_alive": chosen.workers * push_depth * chosen.size,
        "rows_per_s": round(chosen.rows_per_s, 2),
    }


@dataclass(frozen=True, slots=True)
class Size:
    """`threads` of each worker, the workers' capacities, and rows on the device at once; None: no bound."""

    threads: int
    workers: tuple[int, ...]
    max_alive: int | None = None


def suggested(profiles: Iterable[ModelProfile]) -> Size | None:
    """What `starling profile` suggested last, in one of a model's profiles."""
    told = [one.extra for one in profiles if isinstance(one.extra.get("suggested"), dict)]
    newest = max(told, key=lambda extra: str(extra.get("made", "")), default=None)
    return None if newest is None else size_in(newest["suggested"])


def size_in(found: dict[str, Any]) -> Size | None:
    """The size that `suggestion` wrote; None for what is not as that writes it: files may be edited."""
    threads, workers, alive = found.get("threads"), found.get("workers"), found.get("max_alive")
    if not (_positive(threads) and isinstance(workers, list) and workers and all(map(_positive, workers))):
        return None
    return Size(cast(int, threads), tuple(workers), alive if _positive(alive) else None)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
