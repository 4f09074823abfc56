"""Measures two models side by side: how much batches of the one are slowed by those of the other.

The first runs on one worker, the other is repeated on another: as best-effort units do there that fill what a real-time
unit leaves free. A visit times one combination of sizes: the first model alone and both side by side, each first in
turn. The result of a visit is the ratio of times that follow one another, so that a machine that drifts between visits
bends nothing; a pair is known by the medians of these ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, sqrt
from statistics import median
from typing import NamedTuple

from app.engine.profiling.bench import Bench, visit_all
from app.engine.profiling.sampler import Visits
from app.scheduler.estimates.pairs import PairTime

LEAST_S = 0.02  # of each turn
_TOLERANCE = 0.01  # of the first model's time, to either side
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


def known(visits: Sequence[Visit]) -> bool:
    """Whether the 95 % confidence interval of the median of what the first model is slowed by is narrow enough.

    It is by ranks, so no shape is assumed.
    """
    ordered = sorted(visit.slower for visit in visits)
    below = max(0, floor(len(ordered) / 2 - 0.98 * sqrt(len(ordered))))
    return ordered[-1 - below] - ordered[below] <= 2 * _TOLERANCE


def times(visited: Visits[Sizes, Visit]) -> tuple[PairTime, ...]:
    """What came of it, by sizes; of those that were timed."""
    return tuple(
        PairTime(
            *sizes,
            alone_ms=median(visit.alone_ns for visit in visits) / 1e6,
            beside_ms=median(visit.beside_ns for visit in visits) / 1e6,
            slower=round(median(visit.slower for visit in visits), 4),
        )
        for sizes, visits in visited.visits.items()
        if visits
    )


def visit(bench: Bench, sizes: Sizes, *, alone_first: bool) -> Visit:
    """Time the first model alone, and both side by side.

    `bench`: with the two models, on the workers FIRST and OTHER. Raises ConfigError when a model fails.
    """
    turns = {FIRST: sizes[0]}, {FIRST: sizes[0], OTHER: sizes[1]}
    times = [bench.time(turn)[FIRST].ns for turn in (turns if alone_first else reversed(turns))]
    return Visit(*(times if alone_first else reversed(times)))


def measure_pair(
    bench: Bench, visits: Visits[Sizes, Visit], budget_s: float, on_progress: Callable[[int], None] = lambda done: None
) -> None:
    """Time combinations until all are settled or the time is up; each at least once.

    `on_progress` is called with the number of settled combinations. Raises ConfigError when a model fails.
    """

    def time(sizes: Sizes) -> None:
        visits.add(sizes, visit(bench, sizes, alone_first=len(visits.visits[sizes]) % 2 == 0))

    visit_all(visits, time, budget_s, on_progress)
