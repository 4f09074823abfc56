"""Measures two models side by side: which sizes to time next, and the workers that run them.

The first runs on one worker, the other is repeated on another: as best-effort units do there that fill what a real-time
unit leaves free. A visit times one combination of sizes: the first model alone, both side by side, the other alone, in
a random order. The result of a visit is the ratio of times that follow one another, so that a machine that
drifts between visits bends nothing; a pair is known by the medians of these ratios. Combinations are visited in a new
random order each pass.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from statistics import median
from typing import NamedTuple

from app.contract import Model
from app.engine.device import Device
from app.engine.profiling.bench import BenchedModel, DeviceBench, Round, Timed
from app.engine.profiling.sampler import half_interval
from app.scheduler.estimates.pairs import PairTime

_LEAST_S = 0.02  # of each turn: units far shorter than that are many, and their median is of many
FIRST, OTHER = 0, 1  # the worker that each runs on

Sizes = tuple[int, int]  # rows of the one, rows of the other


class Visit(NamedTuple):
    """Nanoseconds of a unit of the one and of the other, alone and side by side; of the one also by stage."""

    alone_ns: int
    beside_ns: int
    other_alone_ns: int
    other_beside_ns: int
    alone_by_stage: tuple[int, ...] = ()
    beside_by_stage: tuple[int, ...] = ()

    @property
    def slower(self) -> float:
        return self.beside_ns / self.alone_ns - 1


def ends_and_middle(max_batch: int) -> list[int]:
    """One row, the largest batch, and between them the power of two nearest to the middle of the octaves."""
    return sorted({1, 1 << (max_batch.bit_length() // 2), max_batch} & set(range(1, max_batch + 1)))


def ends(max_batch: int) -> list[int]:
    """One row and the largest batch: the most units a second, and the most work in each."""
    return sorted({1, max_batch})


class PairSampler:
    """Which combination to time next, and what came of it.

    One is settled when it has `least` visits and the 95 % confidence interval of the median of what the first model is
    slowed by is within `tolerance` of its time to either side, or when it has `most`. Equal seeds and equal times give
    equal orders.
    """

    def __init__(
        self,
        rows: Sequence[int],
        beside_rows: Sequence[int],
        *,
        least: int = 5,
        most: int = 100,
        tolerance: float = 0.01,
        seed: int = 0,
    ) -> None:
        self.visits: dict[Sizes, list[Visit]] = {sizes: [] for sizes in product(rows, beside_rows)}
        self._least = min(least, most)
        self._most = most
        self._tolerance = tolerance
        self._random = random.Random(seed)
        self._settled: set[Sizes] = set()
        self._pass: list[Sizes] = []

    def next(self) -> Sizes | None:
        """The next combination, None when all are settled."""
        if not self._pass:
            self._pass = [sizes for sizes in self.visits if sizes not in self._settled]
            self._random.shuffle(self._pass)
        return self._pass.pop() if self._pass else None

    def order(self) -> list[int]:
        """A new order of three things to time."""
        return self._random.sample(range(3), 3)

    def add(self, sizes: Sizes, visit: Visit) -> None:
        visits = self.visits[sizes]
        visits.append(visit)
        ratios = [one.beside_ns / one.alone_ns for one in visits]
        if len(visits) >= self._most or (len(visits) >= self._least and half_interval(ratios) <= self._tolerance):
            self._settled.add(sizes)

    @property
    def complete(self) -> bool:
        """Every combination has been timed at least once."""
        return all(self.visits.values())

    @property
    def done(self) -> int:
        """Combinations that are settled."""
        return len(self._settled)

    def times(self) -> tuple[PairTime, ...]:
        """What came of it, by sizes; of those that were timed."""
        return tuple(_time(sizes, visits) for sizes, visits in self.visits.items() if visits)


def _time(sizes: Sizes, visits: Sequence[Visit]) -> PairTime:
    slower = sorted(visit.slower for visit in visits)
    last = len(slower) - 1
    by_stage = zip(*(_by_stage(visit) for visit in visits), strict=True)
    return PairTime(
        *sizes,
        alone_ns=round(median(visit.alone_ns for visit in visits)),
        beside_ns=round(median(visit.beside_ns for visit in visits)),
        slower=round(median(slower), 4),
        spread=round(slower[3 * last // 4] - slower[last // 4], 4),
        speed=round(median(visit.other_alone_ns / visit.other_beside_ns for visit in visits), 4),
        visits=len(visits),
        stages=tuple(round(median(ratios), 4) for ratios in by_stage),
    )


def _by_stage(visit: Visit) -> list[float]:
    """What each stage was slowed by, of a model of several."""
    pairs = list(zip(visit.alone_by_stage, visit.beside_by_stage, strict=True))
    return [beside / alone - 1 for alone, beside in pairs] if len(pairs) > 1 else []


class PairBench(DeviceBench):
    """A model and what runs beside it, or one model twice.

    `device` has two workers that each take a unit of the largest batches, `most`. Variable axes have the `lengths`
    given, by model; None: those of the rows to measure with.
    """

    def __init__(
        self,
        device: Device,
        models: tuple[Model, Model],
        most: Sizes,
        lengths: tuple[Mapping[str, int] | None, Mapping[str, int] | None] = (None, None),
        least_s: float = _LEAST_S,
    ) -> None:
        super().__init__(device)
        self._given = list(zip(models, most, lengths, strict=True))
        self._least_s = least_s

    def _place(self) -> tuple[BenchedModel, ...]:
        first, other = self._given
        placed = BenchedModel(self.device, *first)
        # One model twice is served as one placed model on two workers.
        return placed, placed if other[0] is first[0] else BenchedModel(self.device, *other)

    @property
    def placed(self) -> tuple[Model, Model]:
        """The models as the device runs them."""
        return self._models[0].executor.model, self._models[1].executor.model

    @property
    def lengths(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Of variable axes; known once it is warm."""
        return self._models[0].lengths, self._models[1].lengths

    def warm(self) -> None:
        """Run each size of both once, and lay out the rows to measure with. Raises ConfigError."""
        for model in dict.fromkeys(self._models):
            model.warm()

    def visit(self, sizes: Sizes, order: list[int]) -> Visit:
        """Time the first alone (0), both side by side (1) and the other alone (2), in this order.

        Raises ConfigError when a model fails.
        """
        turns = {FIRST: sizes[0]}, {FIRST: sizes[0], OTHER: sizes[1]}, {OTHER: sizes[1]}
        timed = {number: self.time(turns[number]) for number in order}
        alone, beside = timed[0][FIRST], timed[1][FIRST]
        return Visit(alone.ns, beside.ns, timed[2][OTHER].ns, timed[1][OTHER].ns, alone.by_stage, beside.by_stage)

    def time(self, rows: Mapping[int, int]) -> dict[int, Timed]:
        """The median unit of each worker, of so many rows each, while all of these workers run without a pause."""
        timed = self.run(Round(rows, until=time.perf_counter() + self._least_s))
        return {worker: _median(units) for worker, units in timed.items()}

    def _beside(self, worker: int) -> str:
        return f" beside {self._models[1 - worker].name!r}" if len(self._round.rows) > 1 else ""


def _median(timed: list[Timed]) -> Timed:
    by_stage = zip(*(one.by_stage for one in timed), strict=True)
    return Timed(max(1, round(median(one.ns for one in timed))), tuple(max(1, round(median(ns))) for ns in by_stage))


def measure_pair(
    bench: PairBench, sampler: PairSampler, budget_s: float, on_progress: Callable[[int], None] = lambda done: None
) -> None:
    """Time combinations until all are settled or the time is up; each at least once.

    `on_progress` is called with the number of settled combinations.

    Raises ConfigError when a model fails.
    """
    begin = time.perf_counter()
    while time.perf_counter() - begin < budget_s or not sampler.complete:
        sizes = sampler.next()
        if sizes is None:
            break
        sampler.add(sizes, bench.visit(sizes, sampler.order()))
        on_progress(sampler.done)
