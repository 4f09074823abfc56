"""Measures two models side by side: how much batches of the other model slow those of the first.

The first model runs on one worker, and the other repeatedly on another, as best-effort units run beside real-time ones.
A visit times one combination of sizes: the first model alone, and both side by side; which comes first alternates. Its
result is the ratio of the two times, so that a drift of the machine's speed between visits does not matter. The result
for a pair is the median of these ratios.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import product
from math import floor, sqrt
from statistics import median
from typing import NamedTuple, NoReturn

from app.engine.pool import Slots
from app.engine.profiling.measuring import Measuring
from app.engine.profiling.profiled_model import ProfiledModel
from app.scheduler.estimates.pairs import PairTime
from planner.commands.profile_measure import repeated

FIRST, OTHER = 0, 1  # the worker that each runs on
_LEAST_NS = 20_000_000  # of each turn
_LEAST, _MOST = 5, 100  # visits of each combination
_TOLERANCE = 0.01  # half the width of the confidence interval, as a share of the first model's time

Sizes = tuple[int, int]  # rows of the first model, rows of the other


class Visit(NamedTuple):
    """Nanoseconds of a unit of the first model, alone and beside the other."""

    alone_ns: int
    beside_ns: int

    @property
    def slower(self) -> float:
        return self.beside_ns / self.alone_ns - 1


def combinations(max_batch: int, other_max_batch: int) -> list[Sizes]:
    """The sizes to time.

    Of the first model: 1, the largest, and the power of two in the middle. Of the other: 1, which makes the most units
    a second, and the largest, which has the most work in each.
    """
    sizes = sorted({1, 1 << (max_batch.bit_length() // 2), max_batch} & set(range(1, max_batch + 1)))
    return list(product(sizes, sorted({1, other_max_batch})))


def is_known(visits: Sequence[Visit]) -> bool:
    """Whether the 95 % confidence interval of the median slowdown is narrow enough.

    The interval is by ranks, so it assumes no distribution.
    """
    ordered = sorted(visit.slower for visit in visits)
    below = max(0, floor(len(ordered) / 2 - 0.98 * sqrt(len(ordered))))
    return ordered[-1 - below] - ordered[below] <= 2 * _TOLERANCE


async def measure_pair(
    measuring: Measuring, first: ProfiledModel, other: ProfiledModel, budget_s: float
) -> tuple[PairTime, ...]:
    """Time all combinations again and again, until each is known or the time is up.

    Both models have rows in their spare slots. Raises RuntimeError that names the model when one fails.
    """
    visits: dict[Sizes, list[Visit]] = {
        sizes: [] for sizes in combinations(first.profile.max_batch, other.profile.max_batch)
    }
    unknown, begun = list(visits), time.monotonic()
    while unknown:
        for sizes in unknown:
            alone_first = len(visits[sizes]) % 2 == 0
            visits[sizes].append(await visit(measuring, first, other, sizes, alone_first=alone_first))
        if time.monotonic() - begun > budget_s:
            break
        unknown = [
            sizes for sizes, seen in visits.items() if len(seen) < _LEAST or (len(seen) < _MOST and not is_known(seen))
        ]
    return tuple(
        PairTime(
            *sizes,
            alone_ms=median(visit.alone_ns for visit in seen) / 1e6,
            beside_ms=median(visit.beside_ns for visit in seen) / 1e6,
            slower=round(median(visit.slower for visit in seen), 4),
        )
        for sizes, seen in visits.items()
    )


async def visit(
    measuring: Measuring, first: ProfiledModel, other: ProfiledModel, sizes: Sizes, *, alone_first: bool
) -> Visit:
    """Time the first model alone, and beside the other. Raises as `measure_pair`."""
    beside_ns = 0 if alone_first else await _beside(measuring, first, other, sizes)
    alone_ns = await _time(measuring, first, sizes[0], "")
    return Visit(alone_ns, beside_ns or await _beside(measuring, first, other, sizes))


async def _beside(measuring: Measuring, first: ProfiledModel, other: ProfiledModel, sizes: Sizes) -> int:
    """Nanoseconds of the first model's batch while the other runs. Returns when neither runs."""
    repeating = asyncio.create_task(_repeat(measuring, other, sizes[1], f" beside {first.name!r}"))
    try:
        found = await _time(measuring, first, sizes[0], f" beside {other.name!r}")
        if repeating.done():  # it has failed
            await repeating
        return found
    finally:
        repeating.cancel()
        await measuring.unmeasured()


async def _time(measuring: Measuring, model: ProfiledModel, size: int, beside: str) -> int:
    """Nanoseconds of a batch of the first model."""
    try:
        return (await repeated(measuring, model.executor, FIRST, _slots(model, FIRST, size), _LEAST_NS)).ns
    except RuntimeError as exc:
        raise _failed(model, size, beside, str(exc)) from None


async def _repeat(measuring: Measuring, model: ProfiledModel, size: int, beside: str) -> NoReturn:
    """Run a batch of the other model again and again."""
    while True:
        (one,) = await measuring.measure(model.executor, [(OTHER, _slots(model, OTHER, size))])
        if one.completion.ran is None:
            raise _failed(model, size, beside, one.completion.message)


def _slots(model: ProfiledModel, worker: int, size: int) -> Slots:
    begin = worker * model.profile.max_batch
    return model.spare[begin : begin + size]


def _failed(model: ProfiledModel, size: int, beside: str, message: str) -> RuntimeError:
    return RuntimeError(f"model {model.name!r}: a batch of {size} rows{beside}: {message}")
