"""The units that each worker has, when they are predicted to end, and which worker gets the next one.

A busy worker may be handed a second unit, but only shortly before its first one ends (`push_ahead_ns`): a unit pushed
earlier is cut from fewer rows. Simulated on one worker, pushing a second unit at once costs up to 57 % in mean latency.
If none is ever pushed, the device waits for a launch after each unit.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence

from app.scheduler.types import AT_ONCE, DeviceSpec, Klass, Unit


class Workers:
    """The workers of one device. At most `max_running` have units, each at most `push_depth`.

    `at_once`: units that can run at once on these workers. `most`: on the device (`max_running`).
    `busy`: the number of workers with a unit. `full`: no worker may be handed a unit (a short cut for `usable`).
    `units`: all units by id, oldest first. `multi_step`: those of several stages or steps that are not recalled.
    """

    __slots__ = (
        "_ahead_ns", "_before", "_busy_ns", "_depth", "_ends", "_idle", "_idle_since", "_priority", "_queues",
        "_returns", "_seen", "at_once", "busy", "full", "most", "multi_step", "units",
    )  # fmt: skip

    def __init__(self, device: DeviceSpec) -> None:
        self._depth = device.push_depth
        self._ahead_ns = device.push_ahead_ns
        self.most = device.max_running
        self.at_once = min(self.most, len(device.workers))
        self._priority = [worker.priority for worker in device.workers]
        self._queues: list[deque[Unit]] = [deque() for _ in device.workers]  # the first is running
        self._idle = list(range(len(device.workers)))  # workers without units, ascending
        self._ends = [0] * len(device.workers)  # predicted end of all units of each; AT_ONCE: unknown
        self._returns = 0  # how often a worker became idle
        self._idle_since = [0] * len(device.workers)  # the value of `_returns` then: equal workers serve in turn
        self.units: dict[int, Unit] = {}
        self.multi_step: dict[int, Unit] = {}
        self.busy = 0
        self.full = False
        self._busy_ns = self._seen = 0  # busy time of all workers, added up, and when that was last updated
        self._before: dict[int, int] = {}  # by unit: `_busy_ns` when it was handed over, if several run at once

    def usable(self, now: int) -> list[int]:
        """Workers that may be handed a unit now: idle ones, and those whose units are about to end."""
        may_begin = self.busy < self.most
        if self._depth == 1:  # most devices
            return list(self._idle) if may_begin else []
        return [
            worker
            for worker, queue in enumerate(self._queues)
            if (self._opens(worker) <= now if queue else may_begin)
        ]  # fmt: skip

    def next_opening(self, now: int) -> int | None:
        """When the next busy worker may be handed another unit; None if unknown."""
        if self._depth == 1:
            return None
        times = [time for worker, queue in enumerate(self._queues) if queue and now < (time := self._opens(worker))]
        soonest = min(times, default=AT_ONCE)
        return soonest if soonest < AT_ONCE else None

    def _opens(self, worker: int) -> int:
        """When a busy worker may be handed another unit."""
        if len(self._queues[worker]) >= self._depth:
            return AT_ONCE
        if self._queues[worker][-1].course.continue_without:
            return AT_ONCE  # it continues when rows of it end: its end is unknown
        if self._ahead_ns == AT_ONCE:
            return 0
        ends = self._ends[worker]
        return ends - self._ahead_ns if ends < AT_ONCE else AT_ONCE

    def begins(self, worker: int, now: int) -> int:
        """When a worker would begin a unit that it is handed now."""
        ends = self._ends[worker]
        return max(now, ends) if ends < AT_ONCE else now

    def of(self, worker: int) -> Sequence[Unit]:
        """The units of a worker, the one that runs first."""
        return self._queues[worker]

    def has_cell(self, worker: int, program: int, stage: int, klass: Klass) -> bool:
        """Whether a worker has a unit of this cell and class. Waiting rows join that between two steps."""
        return any(
            unit.program == program and unit.stage == stage and unit.klass is klass for unit in self._queues[worker]
        )

    def idle(self, usable: Sequence[int]) -> bool:
        """Whether one of these workers is idle."""
        return any(not self._queues[worker] for worker in usable)

    def soonest(self, usable: Sequence[int], now: int) -> int:
        """When the first of these workers would begin a unit that it is handed now."""
        return min(self.begins(worker, now) for worker in usable)

    def running_and_free(self, usable: Sequence[int]) -> tuple[int, int]:
        """How many units run once one of the usable workers has begun one more, and how many may start now at most."""
        idle = self._depth == 1 or self.idle(usable)  # with depth 1 a usable worker is idle
        return min(self.busy + idle, self.most), min(len(usable), max(1, self.most - self.busy))

    def last_units(self, usable: Sequence[int]) -> list[Unit]:
        """The last unit of each worker that is not usable, if its end is predicted."""
        return [
            queue[-1]
            for worker, (queue, ends) in enumerate(zip(self._queues, self._ends, strict=True))
            if queue and ends < AT_ONCE and worker not in usable
        ]

    def place(self, usable: Sequence[int], size: int, capacity: Sequence[int], now: int) -> tuple[int, int, int]:
        """The worker for a unit of `size` rows, when it would begin it, and how many units would run then."""
        worker = usable[0] if len(usable) == 1 else self._choose(usable, size, capacity)
        if self._queues[worker]:
            return worker, self.begins(worker, now), self.busy
        return worker, now, min(self.busy + 1, self.most)

    def _choose(self, usable: Sequence[int], size: int, capacity: Sequence[int]) -> int:
        """An idle worker before a busy one, then the smallest that takes `size` rows, so that larger ones stay free.

        Among equals the one of the highest priority, the one that is free first, then the one that has been idle
        longest.
        """
        fits = (worker for worker in usable if capacity[worker] >= size)
        return min(
            fits,
            key=lambda w: (
                len(self._queues[w]) > 0, capacity[w], self._priority[w], self._ends[w], self._idle_since[w], w
            ),
        )  # fmt: skip

    def take(self, unit: Unit) -> None:
        """Hand a unit to its worker, which is predicted to begin it at `unit.forecast.begins`."""
        worker = unit.worker
        queue = self._queues[worker]
        forecast, course = unit.forecast, unit.course
        forecast.behind = bool(queue)
        if self.most > 1:
            self._before[unit.id] = self._busy(unit.started)
        if not queue:
            self.busy += 1
            self.full = self._depth == 1 and self.busy == self.most
            self._idle.remove(worker)
        queue.append(unit)
        self.units[unit.id] = unit
        if course.steps > 1 or course.continue_without:
            self.multi_step[unit.id] = unit
        known = forecast.predicted and self._ends[worker] < AT_ONCE
        self._ends[worker] = forecast.begins + forecast.predicted if known else AT_ONCE

    def continued(self, unit: Unit, now: int) -> None:
        """A worker has continued with this unit by itself, before its other units. It was not handed over."""
        queue = self._queues[unit.worker]
        if not queue:
            self._busy(now)
            self.busy += 1
            self.full = self._depth == 1 and self.busy == self.most
            self._idle.remove(unit.worker)
        queue.appendleft(unit)
        unit.forecast.behind = True  # so its hand-over time is not learnt
        self.units[unit.id] = unit
        if unit.course.steps > 1 or unit.course.continue_without:
            self.multi_step[unit.id] = unit
        self._plan(unit.worker, now)

    def give_back(self, unit_id: int, now: int) -> Unit | None:
        """A unit has ended, and its worker begins its next one. Returns the unit, None for an unknown id."""
        unit = self.units.pop(unit_id, None)
        if unit is None:
            return None
        if self.multi_step:
            self.multi_step.pop(unit_id, None)
        worker = unit.worker
        queue = self._queues[worker]
        if self.most > 1:
            busy_ns = self._busy(now)
            before = self._before.pop(unit_id, None)
            if before is not None and now > unit.started:
                unit.forecast.others = max(0.0, (busy_ns - before) / (now - unit.started) - 1)
        queue.remove(unit)
        if queue:
            self._plan(worker, now)
        else:
            self.busy -= 1
            self.full = False
            self._ends[worker] = 0
            insort(self._idle, worker)
            self._returns += 1
            self._idle_since[worker] = self._returns
        return unit

    def _busy(self, now: int) -> int:
        """Busy time of all workers, added up, in nanoseconds."""
        self._busy_ns += self.busy * (now - self._seen)
        self._seen = now
        return self._busy_ns

    def recall(self, unit: Unit, now: int) -> None:
        """A unit is to end with the running step or stage. At a cell one step of it is assumed to be left."""
        unit.course.recalled = True
        del self.multi_step[unit.id]
        step = running_stage(unit, now)[1] if unit.forecast.times else unit.forecast.predicted // unit.course.steps
        left = max(0, now - unit.forecast.begins) + step
        if unit.forecast.predicted > left:
            unit.forecast.predicted = left
            self._plan(unit.worker, self._queues[unit.worker][0].forecast.begins)

    def _plan(self, worker: int, now: int) -> None:
        """Predict again: a worker's first unit begins now, each other one when the unit before it ends."""
        ends = now
        for unit in self._queues[worker]:
            unit.forecast.begins = ends if ends < AT_ONCE else now
            ends = ends + unit.forecast.predicted if unit.forecast.predicted and ends < AT_ONCE else AT_ONCE
        self._ends[worker] = ends

    def remaining_ns(self, now: int, klass: Klass = Klass.BEST_EFFORT) -> int:
        """The predicted time that all units of this class or a better one have left, added up.

        Unknown times count as 0.
        """
        return sum(_remaining(queue, now, klass) for queue in self._queues)

    def after_turns_ns(self, now: int, klass: Klass, priority: int, program: int) -> int:
        """The part of `remaining_ns` in which rows of `program`, of this class and priority, will have had their turn:
        of cells of other programs, of no better priority, what follows their own turn and a step.
        """
        total = 0
        for unit in self.multi_step.values():
            course, forecast = unit.course, unit.forecast
            lets = unit.klass is klass and unit.program != program and unit.rows[0].call.priority >= priority
            if lets and course.turn_ends:
                ends = forecast.begins + forecast.predicted
                total += max(0, ends - max(now, course.turn_ends) - forecast.predicted // course.steps)
        return total


def running_stage(unit: Unit, now: int) -> tuple[int, int]:
    """For a unit of several stages: which one is predicted to run now (0: its first), and how long until it ends."""
    ends = unit.forecast.begins
    for place, time in enumerate(unit.forecast.times):
        ends += time
        if now < ends:
            return place, min(time, ends - now)
    return unit.course.steps - 1, 0


def _remaining(queue: Iterable[Unit], now: int, klass: Klass) -> int:
    total = 0
    for place, unit in enumerate(queue):
        if unit.klass <= klass:
            total += unit.forecast.predicted if place else max(0, unit.forecast.begins + unit.forecast.predicted - now)
    return total
