"""Times two models side by side on a device of their own, as the server's workers run them.

The first runs on one worker, the other is looped on another: as best-effort units do there that fill what a real-time
unit leaves free. What is timed is what the workers report of their units, as for a single model.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Self

from app.contract import Model
from app.engine.device import Completion, Device
from app.engine.profiling.bench import Guest, Timed
from app.engine.profiling.pair_sampler import PairSampler, Sizes, Visit
from app.errors import ConfigError

_CLOSE_S = 5.0
_LEAST_S = 0.02  # of each turn: units far shorter than that are many, and their median is of many
_LONG_NS = 10_000_000  # a worker's first unit counts from here on: the other has begun within a percent of it
FIRST, OTHER = 0, 1  # the worker that each runs on


class PairBench:
    """A model and what runs beside it, or one model twice; use as a context manager. Blocks: not for the event loop.

    `device` has not been started, and has two workers that each take a unit of the largest batches, `most`. Variable
    axes have the `lengths` given, by model; None: those of the rows to measure with.
    """

    def __init__(
        self,
        device: Device,
        models: tuple[Model, Model],
        most: Sizes,
        lengths: tuple[Mapping[str, int] | None, Mapping[str, int] | None] = (None, None),
        least_s: float = _LEAST_S,
    ) -> None:
        self.device = device
        self._models = models
        self._most = most
        self._lengths = lengths
        self._least_s = least_s
        self._guests: tuple[Guest, Guest]
        self._turn = Turn({}, 0.0)

    def __enter__(self) -> Self:
        self.device.start(self._report)
        try:
            one, other = self._models
            first = Guest(self.device, one, self._most[0], self._lengths[0])
            twice = other is one  # as it is served: one placed model on two workers
            self._guests = first, first if twice else Guest(self.device, other, self._most[1], self._lengths[1])
        except BaseException:
            self.device.close(_CLOSE_S)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.close(_CLOSE_S)

    @property
    def placed(self) -> tuple[Model, Model]:
        """The models as the device runs them."""
        return self._guests[0].executor.model, self._guests[1].executor.model

    @property
    def lengths(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Of variable axes; known once it is warm."""
        return self._guests[0].lengths, self._guests[1].lengths

    def warm(self) -> None:
        """Run each size of both once, and lay out the rows to measure with. Raises ConfigError."""
        for guest in dict.fromkeys(self._guests):
            guest.warm()

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
        self._turn = turn = Turn(rows, time.perf_counter() + self._least_s)
        with turn.lock:
            for worker, size in rows.items():
                self._guests[worker].push(worker, 0, size)
        turn.over.wait()
        if turn.failed is not None:
            raise ConfigError(self._fault(turn.failed, rows))
        return {worker: _median(timed) for worker, timed in turn.timed.items()}

    def _fault(self, completion: Completion, rows: Mapping[int, int]) -> str:
        worker = completion.worker
        beside = f" beside {self._guests[1 - worker].name!r}" if len(rows) > 1 else ""
        return f"model {self._guests[worker].name!r}: a batch of {rows[worker]} rows{beside}: {completion.message}"

    def _report(self, completion: Completion) -> None:
        """On a worker's thread. The thread that waits for the turn is not told of single units: waking up for each it
        would take the time of a core from workers that are all at work, and only where they are.
        """
        turn, worker = self._turn, completion.worker
        if turn.goes_on(completion):
            self._guests[worker].push(worker, completion.outcome.unit_id + 1, turn.rows[worker])


class Turn:
    """Workers that run at once, and whether they have run long enough. Told by several threads.

    It ends when each has ended a unit that counts, and not before `until`; `over` is set when all have stopped. A
    worker's first unit counts only where it is long: it pays for waking up, and the other may not have begun. Nor
    does one count that ends after another worker has stopped. Whoever holds `lock` while handing out the first units
    sees to it that no worker goes on before all have been given theirs.
    """

    def __init__(self, rows: Mapping[int, int], until: float) -> None:
        self.rows = rows
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.timed: dict[int, list[Timed]] = {worker: [] for worker in rows}  # units that count, by worker
        self.failed: Completion | None = None
        self._until = until
        self._running = len(rows)
        self._ends = False

    def goes_on(self, completion: Completion) -> bool:
        """A unit has ended: whether its worker is to run another."""
        outcome, ran = completion.outcome, completion.ran
        with self.lock:
            if ran is None:
                self.failed, self._ends = completion, True
            elif not self._ends and (outcome.unit_id > 0 or outcome.compute_ns >= _LONG_NS):
                self.timed[completion.worker].append(Timed(outcome.compute_ns, ran.by_stage_ns))
                self._ends = all(self.timed.values()) and time.perf_counter() >= self._until
            self._running -= self._ends
            if not self._running:
                self.over.set()
            return not self._ends


def _median(timed: list[Timed]) -> Timed:
    by_stage = zip(*(one.by_stage for one in timed), strict=True)
    return Timed(max(1, round(median(one.ns for one in timed))), tuple(max(1, round(median(ns))) for ns in by_stage))


def measure_pair(
    bench: PairBench, sampler: PairSampler, budget_s: float, told: Callable[[int], None] = lambda done: None
) -> None:
    """Time combinations until all are settled or the time is up; each at least once. `told`: how many are settled.

    Raises ConfigError when a model fails.
    """
    begin = time.perf_counter()
    while time.perf_counter() - begin < budget_s or not sampler.complete:
        sizes = sampler.next()
        if sizes is None:
            break
        sampler.add(sizes, bench.visit(sizes, sampler.order()))
        told(sampler.done)
