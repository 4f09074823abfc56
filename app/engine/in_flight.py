"""The units that a device has: hands over what a Step starts, recalls and takes back what it says, knows since when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from app.engine.device import Device, Job
from app.engine.served_model import ServedModel
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Klass, Outcome, Step, Unit


class InFlight:
    """Of one device, on the event loop. `served`: the models by program. `units`: those not ended, by id."""

    def __init__(
        self, device: Device, scheduler: Scheduler, clock: Callable[[], int], served: Mapping[int, ServedModel]
    ) -> None:
        self.units: dict[int, Unit] = {}
        self._device = device
        self._scheduler = scheduler
        self._clock = clock
        self._served = served
        self._jobs: dict[int, Job] = {}  # of units that may be recalled, or taken back
        workers = len(device.spec.workers)
        self.busy_ns = [0] * workers
        self._free_since = [0] * workers  # when the worker's last unit ended
        self.on_end: Callable[[Unit, Outcome, int, int], None] | None = None  # see Engine.watch

    def step(self, *, hold: bool) -> Step:
        """Ask the scheduler, told how many steps its units have made, and recall what it says.

        The rest of the Step is the caller's.
        """
        for unit_id, running in self._jobs.items():
            if (told := self.units.get(unit_id)) is not None and running.done > told.progress:
                self._scheduler.progressed(unit_id, running.done, self._clock())
        step = self._scheduler.step(self._clock(), hold=hold)
        for unit in step.recall:
            if (job := self._jobs.get(unit.id)) is not None:  # else it ended after its model had been given up
                self._device.recall(unit.worker, job)
        for unit in step.settle:
            if (job := self._jobs.get(unit.id)) is not None:
                job.onward = False
        return step

    def start(self, units: Sequence[Unit]) -> None:
        """Hand the units of a Step to their workers."""
        for unit in units:
            self._start(unit)

    def end(self, outcome: Outcome, now: int) -> Unit | None:
        """A unit has ended, or goes on as another one; None for one that is not ours."""
        unit = self.units.pop(outcome.unit_id, None)
        if unit is not None:
            if not outcome.goes_on:
                self._jobs.pop(unit.id, None)
            began = self.began(unit)
            self.busy_ns[unit.worker] += now - began
            if self.on_end is not None:
                self.on_end(unit, outcome, began, now)
            self._free_since[unit.worker] = now
        return unit

    def go_on(self, unit: Unit) -> None:
        """A worker has gone on with this unit by itself."""
        self.units[unit.id] = unit

    def began(self, unit: Unit) -> int:
        """When a unit's worker could turn to it: a unit that was pushed behind another began when that one ended."""
        return max(unit.started, self._free_since[unit.worker])

    def _start(self, unit: Unit) -> None:
        self.units[unit.id] = unit
        slots = [row.slot for row in unit.rows]
        executor, best_effort = self._served[unit.program].executor, unit.klass is Klass.BEST_EFFORT
        job = Job(
            unit.id, executor, slots, unit.size, unit.stage, unit.steps,
            best_effort=best_effort, onward=unit.onward, made=unit.made,
        )  # fmt: skip
        if unit.steps > 1 or unit.onward or (best_effort and self._device.spec.withdraws):
            self._jobs[unit.id] = job
        self._device.push(unit.worker, job)

    def withdraw(self, units: Sequence[Unit]) -> bool:
        """Take units back from the device, where it has not begun them; whether there were such."""
        taken = [
            unit
            for unit in units
            if (job := self._jobs.get(unit.id)) is not None and self._device.withdraw(unit.worker, job)
        ]
        for unit in taken:
            del self.units[unit.id], self._jobs[unit.id]
            self._scheduler.withdrawn(unit.id, self._clock())
            if (served := self._served.get(unit.program)) is not None:  # else it ended after its model was given up
                served.free_rows(unit.rows)  # of calls that left meanwhile
        return bool(taken)
