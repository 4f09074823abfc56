"""The nouns of the scheduler: plain data, integer nanoseconds, no behaviour.

Types on the hot path are mutable slotted classes compared by identity; what describes a deployment is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple


class Klass(IntEnum):
    """Service class; the lower value goes first."""

    REALTIME = 0
    BEST_EFFORT = 1


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
    """Why a unit was formed when it was, and no later."""

    FULL = "full"  # as many rows as a unit of this key ever has
    IDLE = "idle"  # all rows that waited, on a worker that was idle
    TABLE = "table"  # as many as the policy aims at
    DEADLINE = "deadline"  # a row would have missed its deadline
    HOLD_ENDED = "hold_ended"  # the oldest row had been held as long as the policy holds rows
    RETRY = "retry"  # part of a unit that failed


class Operation(StrEnum):
    """What a unit does with the batches of its program (see `batches`)."""

    NEW = "new"
    STRETCH = "stretch"
    SPLIT = "split"
    ON = "on"  # none of them: a batch continues as it is


class Fault(StrEnum):
    """What a worker reports when a unit did not finish."""

    MODEL = "model"
    OOM = "oom"
    DEVICE = "device"


class RowState(IntEnum):
    WAITING = 0
    RUNNING = 1
    ENDED = 2


@dataclass(frozen=True, slots=True)
class Profile:
    """Measured batch times of one stage: `batch_ns[b - 1]` for b rows alone. Empty: nothing is known yet.

    `concurrency_ns[k - 2][b - 1]`: the same while k units run at once. `by_length`: (length, times by size), ascending,
    where times depend on the longest row of the batch; `batch_ns` is then what is planned with for any length.
    `handover_ns`: what a unit costs beyond these, to give it to a worker and learn of its end; None: nothing, and
    nothing is learnt of it while it serves. `errors`: by size, the standard error of `batch_ns` as a share of it; ()
    where the times are exact.
    """

    batch_ns: tuple[int, ...] = ()
    concurrency_ns: tuple[tuple[int, ...], ...] = ()
    by_length: tuple[tuple[int, tuple[int, ...]], ...] = ()
    handover_ns: int | None = None
    errors: tuple[float, ...] = ()

    def times_of(self, units: int) -> tuple[int, ...]:
        """Times by size while so many units run; beyond the most measured, as that many."""
        if units == 1 or not self.concurrency_ns:
            return self.batch_ns
        return self.concurrency_ns[min(units, len(self.concurrency_ns) + 1) - 2]


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a program. With `repeats` a row stays at the stage until an outcome says that it ended.

    `most_steps`: none takes more of them there; 0: nothing bounds them. `own_steps`: they do not follow its length.
    """

    profile: Profile = Profile()
    repeats: bool = False
    most_steps: int = 0
    own_steps: bool = False


@dataclass(frozen=True, slots=True)
class Program:
    """One loaded version of a model, as the scheduler sees it. `max_alive`: rows of it on the device at once.

    `one_unit`: one unit of it runs at a time, since its rows have their state in one place.
    """

    id: int
    name: str
    stages: tuple[Stage, ...] = (Stage(),)
    policy: str = "adaptive"
    max_batch: int = 32
    max_queue: int = 1024
    max_delay_ns: int = 5_000_000
    length_buckets: tuple[int, ...] = ()
    max_alive: int = 1 << 30
    reorder: bool = True  # a policy that picks rows by their length may do so
    one_unit: bool = False
    complete_wait: float = 1.0  # `dva_load`: see its module
    weight: float = 1.0  # of its real-time rows against other programs', where weights differ: see `forming.models`


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """A worker runs at most `capacity` rows a unit, on a stream of its own with a priority."""

    capacity: int
    priority: int = 0


LOWEST_PRIORITY = 1 << 31  # beyond any that a client can ask for
#: `push_ahead_ns` that hands over a second unit at once, whatever is known of the first.
AT_ONCE = 1 << 62


@dataclass(frozen=True, slots=True)
class ClassSpec:
    """What best-effort work may cost real-time work on a device.

    `preset`: how both share it, by name (`forming.presets`). `budget_ns`: predicted time of best-effort work handed
    over and not ended. `slowdown`: by how much of its time a real-time unit may be slowed by what runs beside it.
    `share`: part of the device's time that best-effort work has whatever happens. `edf`: of one priority, real-time
    calls go by their deadlines, not in order of arrival.
    """

    preset: str = "reef"
    budget_ns: int = 10_000_000
    slowdown: float = 0.02
    share: float = 0.0
    edf: bool = False


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What one device may do at once.

    `max_running` units, `max_alive` rows (Ebird's MaxInf), `push_depth` units handed to one worker and unfinished.
    A unit is handed over behind others of its worker only when these are predicted to end within `push_ahead_ns`: a
    unit that is cut earlier is cut from fewer rows. `multi_step`: a worker makes the stages or steps of a unit
    by itself, one after another, until it is recalled.
    """

    workers: tuple[WorkerSpec, ...]
    max_running: int = 1
    max_alive: int = 1 << 30
    push_depth: int = 1
    push_ahead_ns: int = 0
    multi_step: bool = False
    classes: ClassSpec = ClassSpec()


@dataclass(slots=True, eq=False)
class Call:
    """One inference request. `deadline` and `arrived` are on the driver's clock; no deadline is None."""

    id: int
    program: int
    rows: list[Row]
    klass: Klass
    priority: int
    arrived: int
    deadline: int | None
    # kept by the scheduler
    left: int = 0  # rows that have not ended
    alive: bool = True  # False once the call has left, for whatever reason


@dataclass(slots=True, eq=False)
class Batch:
    """Rows that travel together through the stages: an entry of the batch table, which alone changes it.

    By stage: `launched`, rows ever handed to a worker there; `completed`, rows that have passed it;
    `standing`, rows that wait there now.
    """

    id: int
    created: int
    bucket: int  # of the lengths of its rows
    klass: Klass  # of all of them
    launched: list[int]
    completed: list[int]
    standing: list[int]
    size: int = 0
    live: int = 0  # rows that have not ended
    closed: bool = False  # nothing may join it any more


@dataclass(slots=True, eq=False)
class Row:
    """What is scheduled: one row of a call. `length` is its longest variable axis; `slot` is the pool's business."""

    slot: int = -1
    length: int = 0
    # kept by the scheduler
    call: Call = field(init=False, repr=False)
    index: int = 0  # within its call
    stage: int = 0
    state: RowState = RowState.WAITING
    order: tuple[int, int, int] = (0, 0, 0)  # of service: priority, arrival or deadline, sequence of submission
    started: bool = False  # it counts as alive on the device
    group: int = 0  # of rows that wait to run again as one unit
    advanced: bool = False  # it has been through a unit: the device keeps something of it between units
    batch: Batch | None = None  # of programs with stages or cells, once it has started
    entered: int = 0  # stages at which it has been handed to a worker
    steps: int = 0  # that it has made at its stage, where this repeats


@dataclass(slots=True, eq=False)
class Unit:
    """What a worker runs next: `rows` of one key as a batch of `size` (the rest is padding).

    `steps`: so many steps of a cell, or stages from `stage` on, one after another. Where a worker goes on by itself it
    may make fewer: it ends with the first row that does, and when it is recalled.
    """

    id: int
    worker: int
    program: int
    stage: int
    rows: list[Row]
    size: int
    reason: Formed
    started: int  # when it was handed to its worker
    predicted: int  # nanoseconds; 0 where nothing is known
    begins: int = 0  # when its worker is predicted to turn to it: later than `started` behind another unit
    running: int = 1  # units on the device when it was handed out, itself included
    steps: int = 1
    length: int = 0  # of its longest row, where batch times depend on it
    operation: Operation = Operation.NEW
    behind: bool = False  # its worker had another unit when it was handed over
    others: float = 0.0  # units on other workers while it ran, on average: known when it has ended
    recalled: bool = False  # it is to end with the step or stage that runs
    progress: int = 0  # steps of it that its worker has made, as far as the driver has said
    continue_without: bool = False  # of a cell: when rows of it end, its worker continues, unless it is recalled
    times: tuple[int, ...] = ()  # of several stages: predicted nanoseconds of each, which add up to `predicted`
    klass: Klass = Klass.REALTIME  # of its first row; best-effort ones that fill its padding are behind the others


@dataclass(frozen=True, slots=True)
class Outcome:
    """A worker's word on a unit. `ended`: positions within the unit that ended early (recurrent stages).

    `steps`: those that it made. A fault is always of its first one: where a later one fails, the unit ends well before
    it. `times`: `compute_ns` by stage, where it ran several; of a step at a cell, 0 where rows have only read.
    `continues`: its worker has continued with the rows of it that have not ended.
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
    """A call that leaves without an answer. `row` names the culprit where there is one, else -1."""

    call: Call
    reason: Reason
    row: int = -1


class Refusal(NamedTuple):
    """Why a call is not admitted, and when it may be worth trying again. A tuple is made in a third of the time."""

    reason: Reason
    retry_after_ns: int


@dataclass(slots=True, eq=False)
class Step:
    """What the driver must carry out, all of it: start units, resolve calls, fail calls, wake up by `wake_at`.

    `recall`: units that are to end with the step or stage that runs.
    `end_at_next_row`: units that are to end when the first of their rows does, because others wait for that.
    `held`: a best-effort unit could start and was held, because the driver asked for that.
    """

    start: list[Unit]
    done: list[Call]
    drop: list[Drop]
    wake_at: int | None
    recall: Sequence[Unit] = ()
    end_at_next_row: Sequence[Unit] = ()
    held: bool = False
