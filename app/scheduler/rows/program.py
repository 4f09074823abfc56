"""One program of a device: its settings, how large its units may be, what is counted and what is estimated of it.

A queue is bounded to the rows that can be served before their callers give up. How long callers wait is learnt from
those who leave. Calls beyond the bound are refused at once; while nobody leaves, it grows up to the program's
`max_queue` (docs/theory/order-and-share.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from app.scheduler.estimates.profile import Profile
from app.scheduler.rows.batches import BatchTable
from app.scheduler.rows.estimates import Estimates
from app.scheduler.rows.ready import Level, ReadySet
from app.scheduler.types import DeviceSpec, Klass, Program

#: Maps the throughput by size to the largest size of a unit at a cell.
Largest = Callable[[Sequence[float]], int]

_LONG = 2  # times the largest batch: callers do not leave because of a shorter queue, so it is never cut
_SHARE = 8  # at least one row leaves for so many that are served: fewer may leave for other reasons
_GROWTH = 50  # the bound grows by a fiftieth a window


class Patience:
    """The patience of the callers of one program and class. `bound`: rows that may wait now."""

    __slots__ = ("_largest", "_least", "_left", "_since", "_waited_ns", "bound")

    def __init__(self, max_queue: int, max_batch: int, now: int) -> None:
        self.bound = self._largest = max_queue
        self._least = min(max_queue, _LONG * max_batch)
        self._since = now
        self._left = self._waited_ns = 0

    def leave(self, rows: int, waited_ns: int, waiting: int) -> None:
        """A caller of so many rows has left after this time, while `waiting` rows of the class waited."""
        if waiting > self._least:
            self._left += rows
            self._waited_ns += rows * waited_ns

    def tick(self, now: int, served: int) -> None:
        """The rate monitor's window has closed. `served`: rows that ended well in it, callers gone or not."""
        window, left = now - self._since, self._left
        if window > 0 and served and left * _SHARE >= served:
            self.bound = min(self._largest, max(self._least, served * self._waited_ns // left // window // 2))
        elif self.bound < self._largest:
            self.bound = min(self._largest, self.bound + self.bound // _GROWTH + 1)
        self._since = now
        self._left = self._waited_ns = 0


class Queue:
    """Lists have a value for each class. Only the ledger, the outcomes and the scheduler change them."""

    __slots__ = ("alive", "asked", "calls", "demand_ns", "ended", "hints", "most", "patience", "waiting")

    def __init__(self, program: Program, now: int) -> None:
        self.most = program.max_queue  # rows that may wait, of each class
        self.alive = 0  # rows that have started and not ended
        self.waiting = [0 for _ in Klass]  # rows in the ready table
        self.calls = 0  # calls that have not left
        # in this window: rows that arrived (refused ones included), and rows that ended well
        self.asked, self.ended = [0 for _ in Klass], [0 for _ in Klass]
        self.demand_ns = [0 for _ in Klass]  # device time that all rows so far need in full batches
        self.patience = [Patience(program.max_queue, program.max_batch, now) for _ in Klass]
        #: By level: (valid until, Retry-After in nanoseconds), see `admission`.
        self.hints: dict[Level, tuple[int, int]] = {}

    def takes(self, rows: int, klass: Klass) -> bool:
        """Whether so many more may wait: within `max_queue`, and as long as callers have patience."""
        waiting = self.waiting[klass]
        return waiting + rows <= self.most and waiting < self.patience[klass].bound

    def tick(self, now: int) -> int:
        """A window has closed: judge the callers' patience by the rows that ended in it. Returns how many did."""
        for patience, rows in zip(self.patience, self.ended, strict=True):
            patience.tick(now, rows)
        ended = sum(self.ended)
        self.ended = [0 for _ in Klass]
        return ended

    def add_demand(self, row_ns: float) -> None:
        """Rows of this window need so much device time each, and the next window begins."""
        for klass, rows in zip(Klass, self.asked, strict=True):
            self.demand_ns[klass] += round(rows * row_ns)
        self.asked = [0 for _ in Klass]


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
