"""Measures two models side by side: how much batches of the other model slow those of the first.

The first model runs on one worker, and the other repeatedly on another, as best-effort units run beside real-time ones.
A visit times one combination of sizes: the first model alone, and both side by side; which comes first alternates. Its
result is the ratio of the two times, which follow one another, so that a drift of the machine's speed between visits
does not matter. The result for a pair is the median of these ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import floor, sqrt
from statistics import median
from typing import NamedTuple

from app.engine.profiling.offline import OfflineBench, visit_all
from app.engine.profiling.sampler import Visits
from app.scheduler.estimates.pairs import PairTime

LEAST_S = 0.02  # of each turn
_TOLERANCE = 0.01  # half the width of the confidence interval, as a share of the first model's time
FIRST, OTHER = 0, 1  # the worker that each runs on

Sizes = tuple[int, int]  # rows of the first model, rows of the other


class Visit(NamedTuple):
    """Nanoseconds of a unit of the first model, alone and beside the other."""

    alone_ns: int
    beside_ns: int

    @property
    def slower(self) -> float:
        return self.beside_ns / self.alone_ns - 1


def combinations(max_batch: int, other_max_batch: int, repeats: int) -> Visits[Sizes, Visit]:
    """The sizes to time, each at most `repeats` times.

    Of the first model: 1, the largest, and the power of two in the middle. Of the other: 1, which makes the most units
    a second, and the largest, which has the most work in each.
    """
    sizes = sorted({1, 1 << (max_batch.bit_length() // 2), max_batch} & set(range(1, max_batch + 1)))
    return Visits(product(sizes, sorted({1, other_max_batch})), is_known, most=repeats)


def is_known(visits: Sequence[Visit]) -> bool:
    """Whether the 95 % confidence interval of the median slowdown is narrow enough.

    The interval is by ranks, so it assumes no distribution.
    """
    ordered = sorted(visit.slower for visit in visits)
    below = max(0, floor(len(ordered) / 2 - 0.98 * sqrt(len(ordered))))
    return ordered[-1 - below] - ordered[below] <= 2 * _TOLERANCE


def times(visited: Visits[Sizes, Visit]) -> tuple[PairTime, ...]:
    """The medians, for all sizes that were timed."""
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


def visit(bench: OfflineBench, sizes: Sizes, *, alone_first: bool) -> Visit:
    """Time the first model alone, and both side by side.

    `bench`: with the two models, on the workers FIRST and OTHER. Raises ConfigError when a model fails.
    """
    turns = {FIRST: sizes[0]}, {FIRST: sizes[0], OTHER: sizes[1]}
    times = [bench.time(turn)[FIRST].ns for turn in (turns if alone_first else reversed(turns))]
    return Visit(*(times if alone_first else reversed(times)))


def measure_pair(
    bench: OfflineBench,
    visits: Visits[Sizes, Visit],
    budget_s: float,
    on_progress: Callable[[int], None],
) -> None:
    """Time combinations until all are settled or the time is up; each at least once.

    `on_progress` is called with the number of settled combinations. Raises ConfigError when a model fails.
    """

    def time(sizes: Sizes) -> None:
        visits.add(sizes, visit(bench, sizes, alone_first=len(visits.visits[sizes]) % 2 == 0))

    visit_all(visits, time, budget_s, on_progress)
