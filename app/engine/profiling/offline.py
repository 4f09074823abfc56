"""Measures batch times of models on a device that serves nothing else, for `starling profile`.

The times are those that workers report (`Completion`); a server corrects its profile by the same figures. Each worker
gets its next unit on its own thread: one more thread that woke up for every unit would take time from busy workers. The
time of a batch beyond computing is measured from an event loop, which pushes units and gets their reports, as in a
server.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Self

from app.contract import Model
from app.engine.device import Completion, Device, Job
from app.engine.profiling.measuring import Measuring, UnitTime, median_of
from app.engine.profiling.sampler import C, Cell, Sampler, Visits, size_sets
from app.engine.profiling.warmup import lay_out, warm_up
from app.errors import ConfigError
from app.models.checks.samples import longest, short_lengths
from app.models.checks.trial import Unfit

_CLOSE_S = 5.0
_LONG_NS = 10_000_000  # a worker's first unit only counts if it takes longer: waking up is then below one percent
_HANDED_OVER = 16  # batches of each size for the hand-over, at most: about a hundred in all


class OfflineModel:
    """A model on a device, with rows to measure: each worker has slots of its own.

    `device` has been started; the model's largest batch must fit each of its workers. `length`: of variable axes; 0:
    the length of the model's own rows or of made-up ones. The constructor warms the model up. Blocks: not for the event
    loop. Raises ConfigError.
    """

    def __init__(self, device: Device, model: Model, length: int = 0) -> None:
        self.name = model.info.name
        self.max_batch = model.info.batching.max_batch
        self._device = device
        try:
            self.executor = device.open(model, len(device.spec.workers) * self.max_batch)
            _, self._rows = warm_up(device, self.executor)
        except (ConfigError, Unfit) as exc:
            raise ConfigError(f"model {self.name!r}: {exc}") from exc
        self.lengths = longest(self._rows)
        if length:
            self.lengths |= short_lengths(model.info.client_inputs, length)
        self._own = length
        self._length = -1  # of the rows in the slots
        self.slots = [self.executor.pool.take(self.max_batch) for _ in device.spec.workers]
        self.lay_out(0)

    def lay_out(self, length: int) -> None:
        """Write rows of this length into all slots, unless they are there; 0: their own length."""
        length = length or self._own
        if length == self._length:
            return
        for slots in self.slots:
            lay_out(self.executor, slots, self._rows, length)
            self._device.arrive(self.executor, slots)
        self._length = length

    def push(self, worker: int, number: int, size: int) -> None:
        """Push a unit of so many rows to the worker."""
        self._device.push(worker, Job(number, self.executor, self.slots[worker][:size], size))


class Round:
    """Workers that run units of `rows[worker]` rows without a pause, until `over` is set.

    They stop when each has ended a unit that counts, but not before the time `until`. A worker's first unit only counts
    if it is long, because it pays for waking up, and other workers may not have begun. A unit that ends after another
    worker has stopped does not count. Several threads use it: hold `lock` while pushing the first units, so that no
    worker continues before all have theirs.
    """

    def __init__(self, rows: Mapping[int, int], until: float = 0.0) -> None:
        self.rows = rows
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.timed: dict[int, list[UnitTime]] = {worker: [] for worker in rows}  # units that count, by worker
        self.failed: Completion | None = None
        self._until = until
        self._running = len(rows)
        self._ends = False

    def continues(self, completion: Completion) -> bool:
        """A unit has ended. Returns whether its worker is to run another."""
        outcome, ran = completion.outcome, completion.ran
        with self.lock:
            if ran is None:
                self.failed, self._ends = completion, True
            elif not self._ends and (outcome.unit_id > 0 or outcome.compute_ns >= _LONG_NS):
                self.timed[completion.worker].append(UnitTime.of(completion))
                self._ends = all(self.timed.values()) and time.perf_counter() >= self._until
            self._running -= self._ends
            if not self._running:
                self.over.set()
            return not self._ends


class OfflineBench:
    """A device with models to measure; use as a context manager. Blocks: not for the event loop.

    `device` has not been started. `given`: the model of each worker; further workers run the last. `length`: see
    OfflineModel. `least_s`: the least time of a visit, so that it has many units if these are short.
    """

    def __init__(self, device: Device, *given: Model, length: int = 0, least_s: float = 0.0) -> None:
        self.device = device
        self.models: list[OfflineModel] = []  # by worker
        self._given = given
        self._own = length
        self._least_s = least_s
        self._round = Round({})
        self._measuring = Measuring(device, time.perf_counter_ns)
        self._loop: asyncio.AbstractEventLoop  # of a measurement

    def __enter__(self) -> Self:
        self.device.start(self._report)
        try:
            for model in self._given:
                # the same model on two workers is placed once
                twice = bool(self.models) and model is self._given[0]
                self.models.append(self.models[0] if twice else OfflineModel(self.device, model, self._own))
        except BaseException:
            self.device.close(_CLOSE_S)
            raise
        self.models += self.models[-1:] * (len(self.device.spec.workers) - len(self.models))
        return self

    def __exit__(self, *exc: object) -> None:
        self.device.close(_CLOSE_S)

    def time(self, rows: Mapping[int, int], length: int = 0) -> dict[int, UnitTime]:
        """The median time of each worker's units of so many rows, while all of these workers run without a pause.

        Raises ConfigError when a model fails.
        """
        for worker in rows:
            self.models[worker].lay_out(length)
        visit = self._round = Round(rows, time.perf_counter() + self._least_s)
        with visit.lock:
            for worker, size in rows.items():
                self.models[worker].push(worker, 0, size)
        visit.over.wait()
        if (failed := visit.failed) is not None:
            name, size = self.models[failed.worker].name, rows[failed.worker]
            raise ConfigError(f"model {name!r}: a batch of {size} rows{self._beside(failed.worker)}: {failed.message}")
        return {worker: median_of(units) for worker, units in visit.timed.items()}

    def _beside(self, worker: int) -> str:
        """For an error message: the models on the other workers."""
        others = [self.models[other].name for other in self._round.rows if other != worker]
        return f" beside {', '.join(map(repr, others))}" if others else ""

    def _report(self, completion: Completion) -> None:
        """On a worker's thread."""
        if completion.outcome.unit_id < 0:
            self._loop.call_soon_threadsafe(self._measuring.ended, completion)
            return
        visit, worker = self._round, completion.worker
        if visit.continues(completion):
            self.models[worker].push(worker, completion.outcome.unit_id + 1, visit.rows[worker])

    async def handover(self, budget_s: float) -> int:
        """The median of the nanoseconds that batches of the first model take beyond computing, over all sizes.

        Runs on an event loop without other work. No pass over the sizes begins after `budget_s`. Raises ConfigError
        when the model fails.
        """
        found: list[int] = []
        self._loop = asyncio.get_running_loop()
        model = self.models[0]
        model.lay_out(0)
        begin = time.perf_counter()
        for _ in range(_HANDED_OVER):
            for size in size_sets(model.max_batch)[-1]:
                batch = [(0, model.slots[0][:size])]
                (one,) = await self._measuring.measure(model.executor, batch)
                if one.completion.ran is None:
                    raise ConfigError(f"model {model.name!r}: a batch of {size} rows: {one.completion.message}")
                found.append(one.handover_ns)
            if time.perf_counter() - begin > budget_s:
                break
        return max(0, round(median(found)))


def visit_all(
    visits: Visits[C, Any],
    visit: Callable[[C], None],
    budget_s: float,
    on_progress: Callable[[int], None] = lambda done: None,
) -> float:
    """Visit cells, each at least once, until all are settled or the time is up. Returns the seconds it took.

    `on_progress` is called with the number of settled cells.
    """
    begin = time.perf_counter()
    while time.perf_counter() - begin < budget_s or not visits.complete:
        cell = visits.next()
        if cell is None:
            break
        visit(cell)
        on_progress(visits.done)
    return time.perf_counter() - begin


def measure(
    bench: OfflineBench, sampler: Sampler, budget_s: float, on_progress: Callable[[int], None] = lambda done: None
) -> float:
    """As `visit_all`. Skips lengths at which the model fails; raises ConfigError when it fails otherwise."""

    def time_cell(cell: Cell) -> None:
        # One figure a visit: units that follow one another are alike, and would make the error look too small.
        try:
            timed = median_of(list(bench.time(dict.fromkeys(range(cell.units), cell.size), cell.length).values()))
        except ConfigError:
            if not cell.length:
                raise
            sampler.drop(cell)  # rows that were repeated or cut may be invalid
        else:
            sampler.add(cell, timed)

    return visit_all(sampler, time_cell, budget_s, on_progress)
