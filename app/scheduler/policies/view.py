"""What a policy sees of one key: the rows that wait there, what is known of their program, and its other stages."""

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
    """What is known of one program, kept by the scheduler. Changes with ticks, not with rows."""

    preferred: int = 1  # rows: Algorithm 1 of Khan et al., at each tick
    control: ControlTables | None = None  # of all stages as one; None: not solved
    level: int = -1  # the control table for the load as it is
    rate: float = 0.0  # rows per second, since it last changed
    scale: float = 1.0  # observed over profiled time of a batch, its hand-over included
    complete_wait: float = 1.0  # of the program, for `dva_load`
    may_hold: bool = False  # the policy, or some control table, ever holds rows back
    crowded: bool = False  # batches were all beside others of late: how fast one is alone is to be found out
    #: By stage and size: nanoseconds from there to the end, one step of each cell. Empty where some is not measured.
    remaining: tuple[tuple[int, ...], ...] = ()
    #: The same by length. Empty where no times by length are known, or the policy may not reorder, or there is a cell.
    lengths: tuple[LengthTimes, ...] = ()
    plan: StagePlan | None = None  # None where some stage is not measured
    #: By stage, units at work and rows: the size at which they are fastest.
    sizes: tuple[tuple[tuple[int, ...], ...], ...] = ()


@dataclass(slots=True)
class Neighbours:
    """The batches and the other stages of a program with stages or cells, as seen from one key.

    Rows count as waiting elsewhere only if they can start: those without room on the device do not.
    """

    cell: bool
    batch: Batch | None  # of the first row; None: it has not begun
    here: int  # rows of that batch that are first in line here
    newcomers: bool  # some row that waits at this cell has not run a step of it
    latest: Batch | None  # the only one that may be stretched; None: not in this length bucket, or in its last stage
    last_formed: int  # when the last batch was, whatever its lengths; -1: there is none
    active: int  # rows of the program that have begun and not ended
    other_buckets: int  # rows that wait at this stage with lengths of other buckets
    oldest: int  # arrival of the oldest of all at this stage
    upstream_stage: int  # the last stage before this one at which rows of this bucket wait; -1: there is none
    upstream: int  # how many wait there
    downstream_stage: int  # the first later stage at which rows of this bucket wait; -1: there is none
    downstream: int  # rows of this bucket that wait at all later stages
    waiting_before: int  # rows that wait at earlier stages that are no cells
    waiting_after: int  # rows that wait at later stages that are no cells
    missing: int = 0  # rows of the first row's batch that have not reached this stage
    # where the policy reorders and times by length are known:
    longest: int = 0  # of the rows that one unit can have here
    longest_upstream: int = 0  # of those upstream, behind the first stage
    longest_downstream: int = 0  # of those downstream
    joinable: int = 0  # rows at the first stage that are about as long as `longest`, if the first of them is one


NEVER = 1 << 62  # the deadline of a row that has none


class Schedule(NamedTuple):
    """By when rows of a key must end, and what they take, for a policy that sees deadlines. Times in nanoseconds."""

    begins: int  # when a worker would turn to a unit that is handed over now
    deadlines: Sequence[int]  # of the first rows, as many as one unit can have; far off for a row without one
    time: Callable[
        ..., int
    ]  # (rows, length of the longest, if others than these): what 95 % of such units take at most
    workers: int  # units that can run at once
    timer_ns: int  # by which timers are late: a hold must not end too late for a deadline
    similar: Callable[[int, int], Sequence[int]]  # deadlines of (rows, how many before the first) in order of length


@dataclass(slots=True)
class KeyView:
    """One key as a policy sees it. Times in nanoseconds."""

    ready: int  # rows that wait, at least 1
    limit: int  # the most rows one unit can have now: idle workers, the model's largest batch, rows alive
    full: int  # the most rows a unit of this key ever has: what a policy that waits waits for
    oldest: Callable[[], int]  # arrival of the row that has waited longest: few policies ask
    max_delay: int
    room: int  # rows that may become or stay alive: Ebird's MaxInf less CurInf
    due: int  # when rows that could run now must be handed over to end by their deadlines; far off where none has one
    free: int  # units that may start now, each on a worker of its own
    running: int  # units at work once one more has started
    facts: Facts
    stage: int = 0
    #: Column of the control table: where another unit is that ends before one that starts now could, see `beside`.
    column: int = 0
    shared: Callable[[], bool] = lambda: False  # whether rows of other models wait or run on this device
    neighbours: Neighbours | None = None  # for a policy that sees stages, where a program has several or a cell
    #: For a policy that reorders, at the first stage of a program with `facts.lengths`.
    length_window: LengthWindow | None = None
    schedule: Schedule | None = None  # for a policy that sees deadlines, where rows have some and times are known


class JoinOffer(NamedTuple):
    """A unit of a cell that its worker continues by itself, and rows that would join its rows if it ended now."""

    left: int  # steps until the unit ends by itself
    ending: int  # rows of it that end then
    stay: Sequence[int]  # steps that each of its other rows has before it then
    joiners: int
    steps: int  # that the first of these has before it
    time: Callable[[int], int]  # what a step of so many rows takes, in nanoseconds
    boundary_ns: int  # what it costs that one more unit ends and begins
