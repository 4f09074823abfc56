"""One program of a device: its settings, how large its units may be, what is counted and what is estimated of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from app.scheduler.estimates.profile import Profile
from app.scheduler.rows.batches import BatchTable
from app.scheduler.rows.estimates import Estimates
from app.scheduler.rows.queue import Queue
from app.scheduler.rows.ready import ReadySet
from app.scheduler.types import DeviceSpec, Program

#: Maps the throughput by size to the largest size of a unit at a cell.
Largest = Callable[[Sequence[float]], int]


class ProgramState:
    """`largest`: of the program's policy. The Ledger changes `queue` and `batches`."""

    def __init__(
        self, program: Program, entry: ReadySet | None, device: DeviceSpec, largest: Largest, now: int
    ) -> None:
        self.program = program
        self.entry = entry  # the set that new real-time rows enter; None if that depends on their length
        several = len(program.stages) > 1 or program.stages[0].repeats
        self.batches = BatchTable() if several else None  # else a row runs in one unit
        self.queue = Queue(program, now)
        self.estimates = Estimates(program, device, now)
        #: By stage and worker: the largest unit. `full`, by stage: the largest of any worker, within the bound of alive
        #: rows.
        self.capacity = [[min(worker.capacity, program.max_batch) for worker in device.workers] for _ in program.stages]
        self.full = [0] * len(program.stages)
        self._room = min(device.max_alive, program.max_alive)
        self._largest = largest
        self._set_room()
        #: Consecutive units that the model failed. A call of one row that fails alone does not count: that row may be
        #: bad.
        self.failures = 0
        self.closed = False
        self.last_cell = -1  # the id of its last unit at a cell

    @property
    def broken(self) -> bool:
        """Whether the model fails whatever it is given. A batch of n bad rows is halved into 2 n - 1 failing units;
        this is more.
        """
        return self.failures >= 3 * self.program.max_batch

    def cap(self, worker: int, rows: int, stage: int = 0) -> None:
        """A unit of more than `rows` rows ran out of this worker's memory at this stage."""
        capacity = self.capacity[stage]
        capacity[worker] = min(rows, capacity[worker])
        self._set_full(stage)

    def bound(self, max_alive: int) -> None:
        """At most `max_alive` rows may be alive at once from now on."""
        self.program = replace(self.program, max_alive=max_alive)
        self._set_room()

    def tick(self, now: int) -> None:
        """The rate monitor's window has closed."""
        if self._room > self.program.max_alive:
            self._set_room()
        queue, estimates = self.queue, self.estimates
        estimates.count_steps(queue.tick(now))
        arrived = sum(queue.asked)
        if arrived:
            queue.add_demand(estimates.row_ns(self.full))
        estimates.tick(now, arrived)

    def reprofile(self, profile: Profile, stage: int = 0) -> None:
        """A stage has been measured anew."""
        self.estimates.reprofile(profile, stage)
        self._set_full(stage)

    def _set_room(self) -> None:
        """Apply the bound. While more rows are alive, units may be as large as that, so that these rows end sooner."""
        self._room = max(min(self._room, self.program.max_alive), self.queue.alive)
        for stage in range(len(self.full)):
            self._set_full(stage)

    def _set_full(self, stage: int) -> None:
        """Set the largest unit of a stage.

        At a cell more rows than the policy's largest would only slow all of them. That does not hold for a program of
        one unit: its rows also read their prompts, which is faster together and not in the times of its steps.
        """
        most = min(self._room, max(self.capacity[stage]))
        latency = self.estimates.latency[stage]
        if self.program.stages[stage].repeats and not self.program.one_unit and latency.known:
            most = self._largest([size / max(1, latency.predict(size)) for size in range(1, most + 1)])
        self.full[stage] = most
