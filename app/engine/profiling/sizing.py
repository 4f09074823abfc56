"""How many workers with how many threads each: candidates to measure, and which of them to suggest.

The rule:
1. Candidates must leave a core to HTTP (on a GPU all do), and answer one row in at most twice the least time of any.
2. They are compared by mean latency at 0.3, 0.6 and 0.9 of the most rows per second that any of them serves.
3. Of those within 5 % of the best, the one with the fewest workers, and of these with the fewest threads, is chosen.
   More workers than needed cost memory, and run a model on several threads at a time.

The means are those of the control tables with Poisson arrivals (`scheduler.optimal`). `max_alive` is the rows of all
running units at the size with the most rows per second: the optimum never cuts larger ones (`starling optimum`).
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
_MOST = 0.98  # of the rows per second of a candidate: beyond it the queue is hardly ever empty
_NEAR = 1.05


@dataclass(frozen=True, slots=True)
class Candidate:
    """A number of workers, each with the threads of the profile. At best they serve `rows_per_s` in batches of `size`.

    `compare` adds the mean latencies at `_LOADS`, or why it was not compared.
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
        """At best: with all workers, or with one less if they slow one another too much."""
        return self._best[0]

    @property
    def size(self) -> int:
        return self._best[1]

    @property
    def _best(self) -> tuple[float, int]:
        """The most rows per second, including hand-overs, and the smallest batch that reaches them."""
        handover_ns = (self.profile.handover_ns or 0) * len(self.profile.parts)
        rate, least = max(
            (units * rows * 1e9 / (time + handover_ns), -rows)
            for units in {self.workers, max(1, self.workers - 1)}
            for rows, time in enumerate(self.profile.times(units), 1)
        )
        return rate, -least

    def means_at(self, rates: Sequence[float]) -> list[float]:
        """The mean latency at each of these ascending rates, in rows per second; infinite if it cannot serve them.

        Takes seconds for several workers.
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


def cores_for_workers(cores: int) -> int:
    """Cores for workers: all but one, which serves HTTP."""
    return max(1, cores - 1)


def counts_to_compare(cores: int) -> list[tuple[int, int]]:
    """(threads, workers) to compare: threads 1, 2, 4, ... and all cores, with one worker and with all that fit."""
    threads = sorted({1 << power for power in range(cores.bit_length()) if 1 << power <= cores} | {cores})
    return [(count, workers) for count in threads for workers in sorted({1, cores // count})]


def compare(candidates: Sequence[Candidate], cores: int | None) -> list[Candidate]:
    """All candidates, in the order given, with their means or `why_not`. Takes seconds for several workers.

    `cores`: the most threads of a candidate. None, or a bound that excludes all: no bound.
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
    """The candidate to suggest, by rule 3 above. Raises ValueError if none was compared."""
    found = [one for one in compared if one.means_ns]
    least = [min(means) for means in zip(*(one.means_ns for one in found), strict=True)]

    def over(one: Candidate) -> float:
        """How many times the least mean of any its means are, on average."""
        return fmean(mean / best for mean, best in zip(one.means_ns, least, strict=True))

    best = min(map(over, found))
    near = [one for one in found if over(one) <= _NEAR * best]
    return min(near, key=lambda one: (one.workers, one.threads))


def suggestion(chosen: Candidate, max_batch: int, push_depth: int) -> dict[str, Any]:
    """The suggested settings, as a profile stores them."""
    return {
        "workers": [max_batch] * chosen.workers,
        "threads": chosen.threads,
        "max_alive": chosen.workers * push_depth * chosen.size,
        "rows_per_s": round(chosen.rows_per_s, 2),
    }


@dataclass(frozen=True, slots=True)
class Size:
    """Threads of each worker, the workers' capacities in rows, and the most rows on the device; None: no bound."""

    threads: int
    workers: tuple[int, ...]
    max_alive: int | None = None


def suggested(profiles: Iterable[ModelProfile]) -> Size | None:
    """The last suggestion of `starling profile` in any of a model's profiles."""
    told = [one.extra for one in profiles if isinstance(one.extra.get("suggested"), dict)]
    newest = max(told, key=lambda extra: str(extra.get("made", "")), default=None)
    return None if newest is None else size_in(newest["suggested"])


def size_in(found: dict[str, Any]) -> Size | None:
    """The size that `suggestion` stored; None for malformed data, because files may be edited."""
    threads, workers, alive = found.get("threads"), found.get("workers"), found.get("max_alive")
    if not (_positive(threads) and isinstance(workers, list) and workers and all(map(_positive, workers))):
        return None
    return Size(cast(int, threads), tuple(workers), alive if _positive(alive) else None)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
