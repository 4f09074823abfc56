"""Measures two models side by side: which sizes to time next, and the workers that run them.

The first runs on one worker, the other is repeated on another: as best-effort units do there that fill what a real-time
unit leaves free. A visit times one combination of sizes: the first model alone and both side by side, in a random
order. The result of a visit is the ratio of times that follow one another, so that a machine that drifts between visits
bends nothing; a pair is known by the medians of these ratios. Combinations are visited in a new random order each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from statistics import median
from typing import NamedTuple

from app.engine.profiling.bench import Bench, visit_all
from app.engine.profiling.sampler import Visits, half_interval
from app.scheduler.estimates.pairs import PairTime

LEAST_S = 0.02  # of each turn
_TOLERANCE = 0.01
FIRST, OTHER = 0, 1  # the worker that each runs on

Sizes = tuple[int, int]  # rows of the one, rows of the other


class Visit(NamedTuple):
    """Nanoseconds of a unit of the first model, alone and beside the other."""

    alone_ns: int
    beside_ns: int

    @property
    def slower(self) -> float:
        return self.beside_ns / self.alone_ns - 1


def ends_and_middle(max_batch: int) -> list[int]:
    """One row, the largest batch, and between them the power of two nearest to the middle of the octaves."""
    return sorted({1, 1 << (max_batch.bit_length() // 2), max_batch} & set(range(1, max_batch + 1)))


def ends(max_batch: int) -> list[int]:
    """One row and the largest batch: the most units a second, and the most work in each."""
    return sorted({1, max_batch})


class PairSampler(Visits[Sizes, Visit]):
    """Which combination to time next, and what came of it.

    One is known well enough when the 95 % confidence interval of the median of what the first model is slowed by is
    within _TOLERANCE of its time to either side.
    """

    def __init__(
        self,
        rows: Sequence[int],
        beside_rows: Sequence[int],
        *,
        least: int = 5,
        most: int = 100,
    ) -> None:
        super().__init__(product(rows, beside_rows), least, most)
        self._pass: list[Sizes] = []

    def next(self) -> Sizes | None:
        if not self._pass:
            self._pass = self.shuffled()
        return self._pass.pop() if self._pass else None

    def alone_first(self) -> bool:
        """Which of the two turns of a visit is next, at random."""
        return self._random.random() < 0.5

    def is_known(self, cell: Sizes) -> bool:
        return half_interval([visit.slower for visit in self.visits[cell]]) <= _TOLERANCE

    def times(self) -> tuple[PairTime, ...]:
        """What came of it, by sizes; of those that were timed."""
        return tuple(_time(sizes, visits) for sizes, visits in self.visits.items() if visits)


def _time(sizes: Sizes, visits: Sequence[Visit]) -> PairTime:
    return PairTime(
        *sizes,
        alone_ms=median(visit.alone_ns for visit in visits) / 1e6,
        beside_ms=median(visit.beside_ns for visit in visits) / 1e6,
        slower=round(median(visit.slower for visit in visits), 4),
    )


def visit(bench: Bench, sizes: Sizes, *, alone_first: bool) -> Visit:
    """Time the first model alone, and both side by side.

    `bench`: with the two models, on the workers FIRST and OTHER. Raises ConfigError when a model fails.
    """
    turns = {FIRST: sizes[0]}, {FIRST: sizes[0], OTHER: sizes[1]}
    times = [bench.time(turn)[FIRST].ns for turn in (turns if alone_first else reversed(turns))]
    return Visit(*(times if alone_first else reversed(times)))


def measure_pair(
    bench: Bench, sampler: PairSampler, budget_s: float, on_progress: Callable[[int], None] = lambda done: None
) -> None:
    """Time combinations until all are settled or the time is up; each at least once.

    `on_progress` is called with the number of settled combinations. Raises ConfigError when a model fails.
    """

    def time(sizes: Sizes) -> None:
        sampler.add(sizes, visit(bench, sizes, alone_first=sampler.alone_first()))

    visit_all(sampler, time, budget_s, on_progress)
