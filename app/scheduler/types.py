"""The nouns of the scheduler: plain data, integer nanoseconds, no behaviour.

Types on the hot path are mutable slotted classes compared by identity; what describes a deployment is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple

from app.scheduler.estimates.profile import NOTHING_KNOWN, Profile


class Klass(IntEnum):
    """Service class; the lower value is served first. As a text it is as clients, settings and metrics write it."""

    REALTIME = 0
    BEST_EFFORT = 1

    def __str__(self) -> str:
        return self.name.lower()


class Reason(StrEnum):
    """Why a call was refused or dropped."""

    QUEUE_FULL = "queue_full"
    DEADLINE = "deadline"  # it passed, in the queue or while running
    DEADLINE_UNREACHABLE = "deadline_unreachable"  # predicted, at admission or when its batch would have started
    MODEL = "model"  # the model raised on a row of this call
    OOM = "oom"  # out of memory even alone
    DEVICE = "device"  # the device is lost
    CLOSED = "closed"  # the program takes no more calls


class Formed(StrEnum):
    """Why a unit was formed at that moment and not later."""

    FULL = "full"  # as many rows as a unit of this key ever has
    IDLE = "idle"  # all rows that waited, on a worker that was idle
    TABLE = "table"  # as many rows as the policy planned
    DEADLINE = "deadline"  # a row would have missed its deadline
    HOLD_ENDED = "hold_ended"  # the oldest row had been held as long as the policy holds rows
    RETRY = "retry"  # part of a unit that failed


class Operation(StrEnum):
    """What a unit does with the batches of its program (see `batches`)."""

    NEW = "new"
    STRETCH = "stretch"
    SPLIT = "split"
    CONTINUE = "on"  # none of these: a batch continues unchanged


class Fault(StrEnum):
    """What a worker reports when a unit did not finish."""

    MODEL = "model"
    OOM = "oom"
    DEVICE = "device"


class RowState(IntEnum):
    """Where a row is. The three in the middle count as alive on the device."""

    WAITING = 0  # it has not run, or its first unit has failed: the device keeps nothing of it
    STARTING = 1  # in its first unit
    BETWEEN = 2  # it waits for a further unit: the device keeps an activation or state of it
    RUNNING = 3  # in a further unit
    ENDED = 4

    @property
    def runs(self) -> bool:
        """Whether the row is in a unit."""
        return self in (RowState.STARTING, RowState.RUNNING)


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a program. With `repeats` it is a cell: a row makes steps there until an Outcome lists it in
    `ended`.

    `most_steps`: the most steps of a row at a cell; 0: unbounded. `own_steps`: they do not depend on its length.
    """

    profile: Profile = NOTHING_KNOWN
    repeats: bool = False
    most_steps: int = 0
    own_steps: bool = False


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Which policy serves a program, and what it is told."""

    name: str = "adaptive"
    max_delay_ns: int = 5_000_000
    reorder: bool = True  # a policy that picks rows by their length may do so
    complete_wait: float = 1.0  # of the policy `dva_load`, see there


@dataclass(frozen=True, slots=True)
class Program:
    """One loaded version of a model, as the scheduler sees it. `max_alive`: rows of it on the device at once.

    `one_unit`: only one unit of it runs at a time, because all its rows keep their state in one slab.
    """

    id: int
    name: str
    stages: tuple[Stage, ...] = (Stage(),)
    policy: PolicySpec = PolicySpec()
    max_batch: int = 32
    max_queue: int = 1024
    length_buckets: tuple[int, ...] = ()
    max_alive: int = 1 << 30
    one_unit: bool = False


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker runs at most `capacity` rows a unit, on a stream of its own with a priority."""

    capacity: int
    priority: int = 0


LOWEST_PRIORITY = 1 << 31  # beyond any that a client can ask for
#: As `push_ahead_ns`: a second unit is handed over at once, whatever the prediction for the first. As a time: unknown.
AT_ONCE = 1 << 62


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """What best-effort work may cost real-time work on a device.

    `budget_ns`: the most predicted time of best-effort units handed over and not ended. `slowdown`: largest slowdown of
    a real-time unit by best-effort units (0.02 = 2 %).
    """

    budget_ns: int = 10_000_000
    slowdown: float = 0.02


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What one device may do at once.

    `max_running` units, `max_alive` rows (Ebird's MaxInf), `push_depth` units handed to one worker and unfinished.
    A unit is handed to a busy worker only when that worker's units are predicted to end within `push_ahead_ns`; earlier
    it would be cut from fewer rows. `multi_step`: a worker runs several stages or steps of a unit by itself, one after
    another, until it is recalled.
    """

    workers: tuple[WorkerSpec, ...]
    max_running: int = 1
    max_alive: int = 1 << 30
    push_depth: int = 1
    push_ahead_ns: int = 0
    multi_step: bool = False
    classes: ClassSpec = ClassSpec()

    @property
    def lead_ns(self) -> int:
        """Nanoseconds by which units are pushed before their worker is idle: so much of the hand-over costs no time."""
        return self.push_ahead_ns if self.push_depth > 1 else 0


@dataclass(slots=True, eq=False)
class Call:
    """One inference request. `deadline` (None: none) and `arrived` are times of the driver's clock."""

    id: int
    program: int
    rows: list[Row]
    klass: Klass
    priority: int
    arrived: int
    deadline: int | None
    # kept by the scheduler
    left: int = 0  # rows that have not ended
    first: int = 0  # the sequence of submission of its first row
    alive: bool = True  # False once the call has left, for whatever reason


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that pass through the stages together: an entry of the batch table. Only the table changes it."""

    id: int
    created: int
    bucket: int  # length bucket of its rows
    klass: Klass  # of all of them
    closed: bool = False  # nothing may join it any more
    rows: dict[Row, None] = field(default_factory=dict, repr=False)  # that have not ended
    ended: int = 0  # rows that have ended at the last stage: they stay counted

    @property
    def size(self) -> int:
        return len(self.rows) + self.ended

    def launched(self, stage: int) -> int:
        """Rows handed to a worker at this stage so far."""
        return self.ended + sum(row.stage > stage or (row.stage == stage and row.launched) for row in self.rows)

    def completed(self, stage: int) -> int:
        """Rows that have passed this stage."""
        return self.ended + sum(row.stage > stage for row in self.rows)


@dataclass(slots=True, eq=False)
class Row:
    """What is scheduled: one row of a call. `length`: of its longest variable axis. `slot`: used by the engine only."""

    slot: int = -1
    length: int = 0
    # kept by the scheduler
    call: Call = field(init=False, repr=False)
    stage: int = 0
    state: RowState = RowState.WAITING
    order: tuple[int, int, int] = (0, 0, 0)  # of service: priority, arrival, sequence of submission
    batch: Batch | None = None  # once it has started, if its program has stages or a cell
    steps: int = 0  # that it has made at its stage, if that is a cell

    @property
    def index(self) -> int:
        """Its place within its call."""
        return self.order[2] - self.call.first

    @property
    def launched(self) -> bool:
        """Whether it has been handed to a worker at its stage."""
        return self.steps > 0 or self.state.runs


@dataclass(slots=True, eq=False)
class Forecast:
    """What is predicted of a unit, and what ran beside it. Times in nanoseconds."""

    predicted: int = 0  # 0: unknown
    begins: int = 0  # when its worker is predicted to begin it, or began it; behind another unit after its hand-over
    running: int = 1  # units on the device when it was handed over, itself included
    length: int = 0  # of its longest row, if batch times depend on it
    times: tuple[int, ...] = ()  # if it has several stages: of each; their sum is `predicted`
    behind: bool = False  # its worker had another unit when it was handed over
    others: float = 0.0  # mean number of units on other workers while it ran: known when it has ended


@dataclass(slots=True, eq=False)
class Course:
    """How far a worker runs a unit by itself: `steps` of a cell, or stages one after another.

    It ends early if a row of it ends at a cell, or if it is recalled.
    """

    steps: int = 1
    progress: int = 0  # steps that the worker has made, as last reported by the driver
    recalled: bool = False  # it is to end with the running step or stage
    continue_without: bool = False  # at a cell: when rows of it end, its worker continues with the others
    turn_ends: int = 0  # at a cell: from then on rows of other programs may take its worker between two steps


ONE_STEP = Course()  # of all units that run one step or stage: nothing of it changes


@dataclass(slots=True, eq=False)
class Unit:
    """What a worker runs next: `rows` of one key and class as a batch of `size` (the rest is padding)."""

    id: int
    worker: int
    program: int
    stage: int
    rows: list[Row]
    size: int
    reason: Formed
    started: int  # when it was handed to its worker
    forecast: Forecast = field(default_factory=Forecast)
    course: Course = ONE_STEP
    operation: Operation = Operation.NEW
    klass: Klass = Klass.REALTIME


@dataclass(frozen=True, slots=True)
class Outcome:
    """A worker's report on a unit that has ended. `ended`: positions of the rows that have ended, at a cell.

    `steps`: how many it made. An error is always of the first step: if a later one fails, the unit ends well with the
    steps before it. `times`: `compute_ns` by stage if it ran several; at a cell, of one step, 0 if rows only read their
    prompts. `continues`: the worker has continued with the other rows.
    """

    unit_id: int
    error: Fault | None = None
    compute_ns: int = 0
    ended: tuple[int, ...] = ()
    steps: int = 1
    times: tuple[int, ...] = ()
    continues: bool = False


@dataclass(slots=True, eq=False)
class Drop:
    """A call that leaves without an answer. `row`: the row that failed, or -1."""

    call: Call
    reason: Reason
    row: int = -1


class Refusal(NamedTuple):
    """Why a call is not admitted, and when to try again. A tuple, which is made in a third of a dataclass's time."""

    reason: Reason
    retry_after_ns: int


@dataclass(slots=True, eq=False)
class Step:
    """What the driver must carry out, all of it: start units, resolve calls, fail calls, wake up by `wake_at`.

    `recall`: units that are to end with the running step or stage.
    `end_at_next_row`: units that are to end when their next row ends, because other rows wait to join.
    `held`: a best-effort unit could have started, but the driver asked to hold it.
    """

    start: list[Unit]
    done: list[Call]
    drop: list[Drop]
    wake_at: int | None
    recall: Sequence[Unit] = ()
    end_at_next_row: Sequence[Unit] = ()
    held: bool = False
