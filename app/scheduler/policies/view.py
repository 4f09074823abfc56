"""What a policy is given to decide about one key: its waiting rows, facts about its program, and its other stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.estimates.parts import StagePlan
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.rows.ready import LengthWindow
from app.scheduler.types import Batch


@dataclass(slots=True)
class Facts:
    """What is known of one program. The scheduler updates it at ticks and new profiles, not for each row."""

    preferred: int = 1  # rows: Algorithm 1 of Khan et al., at each tick
    control: ControlTables | None = None  # of all stages as one; None: not solved
    level: int = -1  # the control table for the load as it is
    rate: float = 0.0  # rows per second: the mean since the last change of the rate
    scale: float = 1.0  # observed over profiled time of a batch, its hand-over included
    complete_wait: float = 1.0  # of the program, for `dva_load`
    may_hold: bool = False  # the policy or some control table may hold rows
    crowded: bool = False  # all recent batches ran beside others: one should run alone, to measure its speed
    #: By stage and size: nanoseconds from there to the end, with one step of each cell. Empty if a stage is not
    #: measured.
    remaining: tuple[tuple[int, ...], ...] = ()
    #: The same by length. Empty if no times by length are known, the policy may not reorder, or there is a cell.
    lengths: tuple[LengthTimes, ...] = ()
    plan: StagePlan | None = None  # None if a stage is not measured
    #: By stage, running units and rows: the size at which so many rows run fastest.
    sizes: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(slots=True)
class Neighbours:
    """The batches and the other stages of a program with stages or a cell, as seen from one key.

    Rows waiting at the first stage count only as far as the device has room for them.
    """

    cell: bool
    batch: Batch | None  # of the first row here; None: it has not started
    here: int  # how many rows of that batch are first in order here
    newcomers: bool  # some row that waits at this cell has made no step of it
    latest: Batch | None  # the newest batch, if new rows may join it: in this length bucket and not in its last stage
    last_formed: int  # when the newest batch of any bucket was formed; -1: there is none
    active: int  # rows of the program that have started and not ended
    other_buckets: int  # rows that wait at this stage in other length buckets
    oldest: int  # when the oldest row at this stage arrived, of any bucket
    upstream_stage: int  # the last stage before this one at which rows of this bucket wait; -1: there is none
    upstream: int  # how many wait there
    downstream_stage: int  # the first later stage at which rows of this bucket wait; -1: there is none
    downstream: int  # rows of this bucket that wait at all later stages
    waiting_before: int  # rows that wait at earlier stages that are no cells
    waiting_after: int  # rows that wait at later stages that are no cells
    missing: int = 0  # rows of the first row's batch that have not reached this stage
    # if the policy reorders and times by length are known:
    longest: int = 0  # length of the longest row that one unit can have here
    longest_upstream: int = 0  # of those upstream, unless at the first stage
    longest_downstream: int = 0  # of those downstream
    joinable: int = 0  # rows at the first stage that are about as long as `longest`; 0 if its first row is not


NEVER = 1 << 62  # the deadline of a row that has none


class Schedule(NamedTuple):
    """Deadlines and batch times of a key, for a policy that sees deadlines. Times in nanoseconds."""

    begins: int  # when a worker would begin a unit that is handed over now
    deadlines: Sequence[int]  # of the first rows, as many as one unit can have; NEVER for a row without one
    #: (rows, length of the longest: by default that of the first rows) -> time that 95 % of such units keep.
    time: Callable[..., int]
    workers: int  # units that can run at once
    timer_ns: int  # how late timers are: a hold must end that much earlier
    similar: Callable[[int, int], Sequence[int]]  # (rows, shorter) -> deadlines of these rows, see `Cut.shorter`


@dataclass(slots=True)
class KeyView:
    """One key as a policy sees it. Times in nanoseconds."""

    ready: int  # rows that wait, at least 1
    limit: int  # the most rows that one unit can have now, by the usable workers and the room on the device
    full: int  # the most rows that a unit of this key ever has
    oldest: Callable[[], int]  # when the row that has waited longest arrived; a function, because few policies ask
    max_delay: int
    room: int  # rows that may start, or have started: Ebird's MaxInf less CurInf
    due: int  # when the first rows must be handed over to keep their deadlines; NEVER if none has one
    #: How many units run once one more has started, and how many may start now, each on a worker of its own. A
    #: function, because few policies ask.
    running_and_free: Callable[[], tuple[int, int]]
    facts: Facts
    stage: int = 0
    #: Column of the control table, by the time that other workers have left, see `time_left`; 0: more than one is free.
    column: int = 0
    shared: Callable[[], bool] = lambda: False  # whether rows of other models wait or run on this device
    neighbours: Neighbours | None = None  # for a policy that sees stages, if the program has several or a cell
    #: For a policy that reorders, at the first stage of a program with `facts.lengths`.
    length_window: LengthWindow | None = None
    schedule: Schedule | None = None  # for a policy that sees deadlines, if rows have some and times are known


class JoinOffer(NamedTuple):
    """A running unit of a cell, and the waiting rows that would join it if it ended now. Times in nanoseconds."""

    left: int  # steps until the unit ends by itself
    ending: int  # rows of it that end with its last step
    stay: Sequence[int]  # for each of its other rows, the steps left after that
    joiners: int  # rows that would join
    steps: int  # steps that the first of these has left
    time: Callable[[int], int]  # rows -> the time of a step
    boundary_ns: int  # the cost of ending one unit and beginning another
