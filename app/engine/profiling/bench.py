"""Measures the batch times of a model on a device of its own, as the server's workers run it.

What is timed is what a worker reports of a unit (`Completion`), the same figure that keeps the scale true while it
serves. What a batch costs beyond that is timed on an event loop, from which units are pushed and into which they are
reported, as a server does.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import NamedTuple, Self

from app.contract import Array, Model, SampleRow
from app.engine.device import Completion, Device, Job, Transfer
from app.engine.pool import Slots
from app.engine.profiling.measured_device import MeasuredDevice
from app.engine.profiling.sampler import Cell, Sampler, coarser
from app.engine.profiling.warmup import warm_up, write_rows
from app.errors import ConfigError
from app.models.checks.samples import longest, short_lengths, stretched
from app.models.checks.trial import GIVE_ROWS, Unfit
from app.scheduler.types import Profile

_CLOSE_S = 5.0
_TOGETHER = 2  # counted units of each worker at a visit, after one that is not
_LONG_NS = 10_000_000  # alone, the first counts from here on: waking up costs less than a percent then
_HANDED_OVER = 16  # batches of each size for the hand-over, at most: the median of about a hundred


class Timed(NamedTuple):
    """Nanoseconds of a unit, and of each stage of a model in stages."""

    ns: int
    by_stage: tuple[int, ...]


class Guest:
    """A model on a device that is there to measure it, with rows to measure with: for each worker slots of its own.

    `device` has been started; a unit of `max_batch` rows must fit each of its workers. Variable axes have the `lengths`
    given; None: those of the rows that the model brings or that are made up for it. Blocks: not for the event loop.
    """

    def __init__(self, device: Device, model: Model, max_batch: int, lengths: Mapping[str, int] | None = None) -> None:
        self.lengths: Mapping[str, int] = lengths or {}
        self.max_batch = max_batch
        self.slots: list[Slots] = []  # by worker
        self._device = device
        self._info = model.info
        self._rows: Sequence[SampleRow] = ()
        self._length = 0  # of the rows that lie in the slots; 0: as they are
        self.executor = device.open(model, len(device.spec.workers) * max_batch)

    @property
    def name(self) -> str:
        return self._info.name

    def warm(self) -> Profile:
        """Run each size once, check what comes back, and lay out the rows to measure with. Raises ConfigError."""
        try:
            quick = warm_up(self._device, self.executor, self.max_batch)
        except Unfit as exc:
            raise ConfigError(f"model {self.name!r}: it raises on made-up rows: {exc}; {GIVE_ROWS}") from None
        rows = quick.rows
        if self.lengths:
            rows = tuple(stretched(self._info.client_inputs, row, self.lengths) for row in rows)
        self.lengths = longest(rows)
        self._rows = rows
        self.slots = [self.executor.pool.take(self.max_batch) for _ in self._device.spec.workers]
        self._write(0)
        return quick.profile

    def lay_out(self, length: int) -> None:
        """See that the rows in all slots have this length; 0: as they are."""
        if length != self._length:
            self._write(length)

    def _write(self, length: int) -> None:
        inputs, rows = self._info.client_inputs, self._rows
        if length:
            rows = [stretched(inputs, row, short_lengths(inputs, length)) for row in rows]
        for slots in self.slots:
            write_rows(self.executor.pool, slots, rows)
            if self._device.staged:
                self._device.arrive(self.executor, slots)
        self._length = length

    def push(self, worker: int, number: int, size: int) -> None:
        """Hand the worker a unit of so many of its rows."""
        self._device.push(worker, Job(number, self.executor, self.slots[worker][:size], size))


class Bench:
    """One model on a device of its own, for measuring; use as a context manager. Blocks: not for the event loop.

    `device` has not been started. The rest is as for `Guest`.
    """

    def __init__(self, device: Device, model: Model, max_batch: int, lengths: Mapping[str, int] | None = None) -> None:
        self.device = MeasuredDevice(device, time.perf_counter_ns)
        self.model = model
        self._max_batch = max_batch
        self._lengths = lengths
        self._ended: queue.SimpleQueue[tuple[Completion, bool, bool]] = queue.SimpleQueue()
        self._round = Round(0, 0)
        self._shapes: list[Array] = []  # outputs of the last unit
        self._guest: Guest

    def __enter__(self) -> Self:
        self.device.start(self._report)
        self._guest = Guest(self.device, self.model, self._max_batch, self._lengths)
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.close(_CLOSE_S)

    @property
    def lengths(self) -> Mapping[str, int]:
        """Of variable axes, while it measures the rows as they are; known once it is warm."""
        return self._guest.lengths

    @property
    def placed(self) -> Model:
        """The model as the device runs it."""
        return self._guest.executor.model

    @property
    def cell(self) -> bool:
        """The device runs the model step by step."""
        return self._guest.executor.steps is not None

    def warm(self) -> Profile:
        """See `Guest.warm`."""
        return self._guest.warm()

    def time(self, cell: Cell) -> list[Timed]:
        """Units of this cell, on as many workers at once. Raises ConfigError when the model fails.

        Units follow one another on each worker without a pause. A worker's first does not count: the others may not
        have begun, and alone it pays for waking up. Nor does what ends after some worker has stopped.
        """
        units, size, length = cell
        self._guest.lay_out(length)
        self._round = Round(units, size)
        for worker in range(units):
            self._guest.push(worker, 0, size)
        times: list[Timed] = []
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
                times.append(Timed(completion.outcome.compute_ns, completion.ran.by_stage_ns))
        if fault:
            at_once = f", {units} at once" if units > 1 else ""
            raise ConfigError(f"model {self.model.info.name!r}: a batch of {size} rows{at_once}: {fault}")
        return times

    async def handover(self, budget_s: float) -> int:
        """Nanoseconds that a batch costs beyond computing: the median over sizes, each visited once a pass.

        On an event loop with nothing else to do. A pass is not begun after `budget_s`. Raises ConfigError when the
        model fails.
        """
        found: list[int] = []
        guest = self._guest
        guest.lay_out(0)
        begin = time.perf_counter()
        for _ in range(_HANDED_OVER):
            for size in coarser(self._max_batch)[-1]:
                ((completion, handover_ns),) = await self.device.measure(guest.executor, [(0, guest.slots[0][:size])])
                if completion.ran is None:
                    raise ConfigError(f"model {self.model.info.name!r}: a batch of {size} rows: {completion.message}")
                found.append(handover_ns)
            if time.perf_counter() - begin > budget_s:
                break
        return max(0, round(median(found)))

    def transfers(self, sizes: Iterable[int]) -> dict[int, Transfer]:
        """What copies cost, by batch size; nothing where the model reads its rows where they were written."""
        found: dict[int, Transfer] = {}
        for size in sizes:
            self.time(Cell(1, size))
            transfer = self.device.transfer(self._guest.executor, size, self._shapes)
            if transfer is not None:
                found[size] = transfer
        return found

    def _report(self, completion: Completion) -> None:
        """On a worker's thread. Its next unit goes first: the others are running."""
        counts, again = self._round.ended(completion)
        if again:
            self._guest.push(completion.worker, completion.outcome.unit_id + 1, self._round.size)
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
        try:
            timed = bench.time(cell)
        except ConfigError:
            if not cell.length:
                raise
            sampler.drop(cell)  # rows of the model's own, repeated or cut, need not be valid
            continue
        by_stage = tuple(round(median(times)) for times in zip(*(one.by_stage for one in timed), strict=True))
        cost = time.perf_counter() - visited
        sampler.add(cell, [round(median(one.ns for one in timed))], cost, [by_stage] if by_stage else ())
        told(sampler.done)
    return time.perf_counter() - begin
