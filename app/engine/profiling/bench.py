"""Measures the batch times of a model as the server's workers run it: gather from slots, model, copy out.

A cell is a size and a number of units that run at once. Cells are visited in a new random order each pass, so that a
machine that drifts does not bend the curve, and a cell is left alone once its median is known well enough. What is
timed is what a worker reports of a unit (`Completion`), the same figure that keeps the scale true while serving.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import floor, sqrt
from statistics import median
from typing import Self

import torch

from app.contract import Array, Model, ModelInfo
from app.engine.devices.cpu.device import Device
from app.engine.devices.cpu.executor import Executor
from app.engine.devices.cpu.worker import Completion, Job
from app.engine.devices.pool import Pool, Slots
from app.engine.devices.streams.device import StreamDevice
from app.engine.devices.streams.executor import StagedExecutor
from app.engine.devices.streams.transfers import Transfer, TransferBench
from app.engine.profiling.warmup import warm_up
from app.errors import ConfigError
from app.models.base import example_inputs
from app.scheduler.estimates.profile import ModelProfile, parse
from app.scheduler.types import Profile

Cell = tuple[int, int]  #: units at once, rows in each

LENGTH = 16  # of variable axes where none is given, as while warming up
_CLOSE_S = 5.0
_TOGETHER = 2  # counted units of each worker at a visit, after one that is not
_LONG_NS = 10_000_000  # alone, the first counts from here on: waking up costs less than a percent then


def cells(sizes: Iterable[int], levels: Iterable[int] = ()) -> list[Cell]:
    """The sizes alone, and at each of the numbers of units at once."""
    return [(units, size) for units in (1, *levels) for size in sizes]


def coarser(max_batch: int) -> list[list[int]]:
    """Sets of sizes to measure, each with fewer than the one before: all, two an octave, one an octave."""
    octaves = {1 << power for power in range(max_batch.bit_length())}
    halves = {3 * size // 2 for size in octaves if size > 1 and 3 * size // 2 <= max_batch}
    return [list(range(1, max_batch + 1)), sorted(octaves | halves | {max_batch}), sorted(octaves | {max_batch})]


def levels(most: int) -> list[int]:
    """Numbers of units at once to measure: powers of two up to `most`, and `most`; those between are interpolated."""
    doubled = [1 << power for power in range(1, most.bit_length()) if 1 << power < most]
    return [*doubled, most] if most > 1 else []


def lengths_of(info: ModelInfo, length: int = LENGTH) -> dict[str, int]:
    """The length of each variable axis: `length`, or the axis' bound where that is less."""
    bounds = {axis: bound for spec in info.inputs for axis, bound in zip(spec.axes, spec.bounds, strict=True) if axis}
    return {axis: min(bound, length) for axis, bound in bounds.items()}


def fill(pool: Pool, slots: Slots, lengths: Mapping[str, int]) -> None:
    """Write ones into the slots, as warm-up does. Copies: not for the event loop where rows are large."""
    for index, value in enumerate(example_inputs(pool.specs, len(slots), lengths)):
        if isinstance(value, torch.Tensor):
            value = (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy()
        pool.write(slots, index, value)
    pool.set_lengths(slots, lengths)


class Sampler:
    """Which cell to time next, and what came of it.

    Every number of units at once gets the same time, pass by pass over its sizes: several units at once take much
    longer than one, and the sizes alone matter most.

    A cell is settled when it has `least` times and the 95 % confidence interval of their median is within `tolerance`
    of it to either side, or when it has `most`. Equal seeds and equal times give equal orders.
    """

    def __init__(
        self, wanted: Sequence[Cell], *, least: int = 5, most: int = 100, tolerance: float = 0.03, seed: int = 0
    ) -> None:
        self.times: dict[Cell, list[int]] = {cell: [] for cell in wanted}
        self._least = min(least, most)
        self._most = most
        self._tolerance = tolerance
        self._random = random.Random(seed)
        self._settled: set[Cell] = set()
        self._passes: dict[int, list[Cell]] = {units: [] for units, _ in wanted}
        self._spent = dict.fromkeys(self._passes, 0.0)

    def next(self) -> Cell | None:
        """The next cell, None when all are settled."""
        for units in sorted(self._spent, key=self._spent.__getitem__):
            left = self._passes[units]
            if not left:
                left += [cell for cell in self.times if cell[0] == units and cell not in self._settled]
                self._random.shuffle(left)
            if left:
                return left.pop()
        return None

    def add(self, cell: Cell, times: Iterable[int], cost: float = 1.0) -> None:
        """Nanoseconds of visits to this cell, and what it cost to get them, in whatever unit."""
        self.times[cell] += times
        self._spent[cell[0]] += cost
        count = len(self.times[cell])
        if count >= self._most or (count >= self._least and self.error(cell) <= self._tolerance):
            self._settled.add(cell)

    @property
    def complete(self) -> bool:
        """Every cell has been timed at least once."""
        return all(self.times.values())

    @property
    def done(self) -> int:
        """Cells that are settled."""
        return len(self._settled)

    def error(self, cell: Cell) -> float:
        """Half the confidence interval of the median, as a share of it; by ranks, so no shape is assumed."""
        times = sorted(self.times[cell])
        below = max(0, floor(len(times) / 2 - 0.98 * sqrt(len(times))))
        return (times[-1 - below] - times[below]) / 2 / median(times)

    def spread(self, cell: Cell) -> float:
        """Distance between the quartiles as a share of the median; of four times or more."""
        times = sorted(self.times[cell])
        return (times[3 * (len(times) - 1) // 4] - times[(len(times) - 1) // 4]) / median(times)

    def table(self, units: int) -> dict[int, int]:
        """Median nanoseconds by size, of what has been timed while `units` ran."""
        return {size: round(median(times)) for (k, size), times in self.times.items() if k == units and times}

    def profile(self, guess: Sequence[int] = (), **keys: object) -> ModelProfile:
        """What was timed as a profile, its other keys as given.

        Sizes that were not timed lie between their neighbours. Beyond the largest, the curve is that of `guess`,
        nanoseconds by size, as far as that goes, moved to meet it. Numbers of units at once at which not both ends of
        the curve were timed are left out. Raises ValueError when 1 was not timed alone.
        """
        alone = self.table(1)
        if guess and alone:
            last = max(alone)
            ratio = alone[last] / guess[last - 1]
            alone |= {size: round(guess[size - 1] * ratio) for size in range(last + 1, len(guess) + 1)}
        ends = {1, max(alone, default=1)}
        counts = sorted({units for units, _ in self.times if units > 1})
        tables = {units: table for units in counts if ends <= (table := self.table(units)).keys()}
        return parse(
            {
                **keys,
                "max_batch": max(ends),
                "batch_ms": _ms(alone),
                "concurrency": {str(units): _ms(table) for units, table in tables.items()},
                "spread": self._spreads(1),
                "concurrency_spread": {str(units): self._spreads(units) for units in tables},
                "repeats": {str(size): len(times) for (units, size), times in self.times.items() if units == 1},
            }
        )

    def _spreads(self, units: int) -> dict[str, float]:
        timed = [cell for cell, times in self.times.items() if cell[0] == units and len(times) >= 4]
        return {str(cell[1]): round(self.spread(cell), 4) for cell in timed}


class Bench:
    """One model on a device of its own, for measuring; use as a context manager. Blocks: not for the event loop.

    `device` has not been started; a unit of `max_batch` rows must fit each of its workers.
    """

    def __init__(self, device: Device, model: Model, max_batch: int, lengths: Mapping[str, int]) -> None:
        self.device = device
        self.model = model
        self._max_batch = max_batch
        self._lengths = lengths
        self._ended: queue.SimpleQueue[tuple[Completion, bool, bool]] = queue.SimpleQueue()
        self._round = Round(0, 0)
        self._shapes: list[Array] = []  # outputs of the last unit
        self._executor: Executor
        self._slots: list[Slots] = []

    def __enter__(self) -> Self:
        self.device.start(self._report)
        self._executor = self.device.open(self.model, len(self.device.spec.workers) * self._max_batch)
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.close(_CLOSE_S)

    @property
    def placed(self) -> Model:
        """The model as the device runs it."""
        return self._executor.model

    def warm(self) -> Profile:
        """Run each size once, check what comes back, and lay out the rows to measure with. Raises ConfigError."""
        quick = warm_up(self._executor, self._max_batch)
        pool = self._executor.pool
        self._slots = [pool.take(self._max_batch) for _ in self.device.spec.workers]
        for slots in self._slots:
            fill(pool, slots, self._lengths)
            if self.device.staged:
                self.device.arrive(self._executor, slots)
        return quick

    def time(self, cell: Cell) -> list[int]:
        """Nanoseconds of units of this cell, on as many workers at once. Raises ConfigError when the model fails.

        Units follow one another on each worker without a pause. A worker's first does not count: the others may not
        have begun, and alone it pays for waking up. Nor does what ends after some worker has stopped.
        """
        units, size = cell
        self._round = Round(units, size)
        for worker in range(units):
            self._push(worker, 0)
        times: list[int] = []
        running = units
        fault = ""
        while running:
            completion, counts, again = self._ended.get()
            running -= not again
            if completion.ran is None:
                fault = completion.message
                continue
            self._shapes = completion.ran.outputs
            if counts:
                times.append(completion.outcome.compute_ns)
        if fault:
            at_once = f", {units} at once" if units > 1 else ""
            raise ConfigError(f"model {self.model.info.name!r}: a batch of {size} rows{at_once}: {fault}")
        return times

    def transfers(self, sizes: Iterable[int]) -> dict[int, Transfer]:
        """What copies cost, by batch size; nothing where the model reads its rows where they were written."""
        if not isinstance(self.device, StreamDevice) or not isinstance(self._executor, StagedExecutor):
            return {}
        found, bench = {}, TransferBench(self.device.runtime)
        for size in sizes:
            self.time((1, size))
            found[size] = bench.measure(self._executor.pool, size, self._shapes)
        return found

    def _push(self, worker: int, number: int) -> None:
        size = self._round.size
        self.device.push(worker, Job(number, self._executor, self._slots[worker][:size], size))

    def _report(self, completion: Completion) -> None:
        """On a worker's thread. Its next unit goes first: the others are running."""
        counts, again = self._round.ended(completion)
        if again:
            self._push(completion.worker, completion.outcome.unit_id + 1)
        self._ended.put((completion, counts, again))


class Round:
    """One visit to a cell: who has ended how many units, and whether it is over. Told by several threads."""

    def __init__(self, units: int, size: int) -> None:
        self.size = size
        self._ended = [0] * units
        self._over = False
        self._lock = threading.Lock()

    def ended(self, completion: Completion) -> tuple[bool, bool]:
        """Whether a unit counts, and whether its worker goes on."""
        with self._lock:
            self._ended[completion.worker] += 1
            alone = len(self._ended) == 1
            counts = not self._over and (
                completion.outcome.unit_id > 0 or (alone and completion.outcome.compute_ns >= _LONG_NS)
            )
            if completion.ran is None or (counts and alone) or min(self._ended) > _TOGETHER:
                self._over = True
            return counts, not self._over


def measure(bench: Bench, sampler: Sampler, budget_s: float, told: Callable[[int], None] = lambda done: None) -> float:
    """Time cells until all are settled or the time is up; each cell at least once. Returns the seconds it took.

    `told` hears how many cells are settled. Raises ConfigError when the model fails.
    """
    begin = time.perf_counter()
    while time.perf_counter() - begin < budget_s or not sampler.complete:
        cell = sampler.next()
        if cell is None:
            break
        visited = time.perf_counter()
        # One figure a visit: units that follow one another are alike, which says nothing of how well they are known.
        sampler.add(cell, [round(median(bench.time(cell)))], time.perf_counter() - visited)
        told(sampler.done)
    return time.perf_counter() - begin


def _ms(table: Mapping[int, int]) -> dict[str, float]:
    return {str(size): ns / 1e6 for size, ns in sorted(table.items())}
