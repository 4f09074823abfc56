"""What a policy sees and what it may answer.

A policy decides about one key at a time and one unit at a time: it is asked again, with one worker fewer and the rows
that are left, until it holds or nothing is idle. Asking again after each unit is what lets another key with an older
head take the next worker; a plan for all workers at once would not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add
from typing import NamedTuple, Protocol

from app.scheduler.estimates.lengths import LengthTimes
from app.scheduler.estimates.profile import padded, parted
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.rows.lanes import Alike
from app.scheduler.types import Batch, DeviceSpec, Formed


@dataclass(frozen=True, slots=True)
class Course:
    """The fastest way of rows through the stages of a program, one unit at a time. Each table is by stage, then rows.

    At each stage the rows that go together run as one unit or in several, each padded if that is faster.
    """

    units: tuple[tuple[int, ...], ...]  # nanoseconds of one unit
    firsts: tuple[tuple[int, ...], ...]  # rows of the first unit
    rest: tuple[tuple[int, ...], ...]  # nanoseconds until all rows have been through this stage and those behind it

    @classmethod
    def of(cls, times: Sequence[tuple[int, ...]]) -> Course:
        """From the batch times of each stage."""
        units = tuple(padded(one)[0] for one in times)
        totals, firsts = zip(*map(parted, units), strict=True)
        return cls(units, firsts, to_the_end(totals))


def to_the_end(times: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """By stage and size: the sum of the times of this stage and all behind it."""
    sums = accumulate(reversed(times), lambda behind, own: tuple(map(add, own, behind)))
    return tuple(sums)[::-1]


@dataclass(slots=True)
class Facts:
    """What is known of one program at one stage, kept by the scheduler. Changes with ticks, not with rows."""

    preferred: int = 1  # rows: Algorithm 1 of Khan et al., at each tick; 0 behind the first stage
    control: ControlTables | None = None  # None: not solved, or not applicable to this stage
    level: int = -1  # the control table for the load as it is
    rate: float = 0.0  # rows per second, since it last changed
    scale: float = 1.0  # observed over profiled time of a batch, its hand-over included
    complete_wait: float = 1.0  # of the program, for `dva_load`
    may_hold: bool = False  # the policy, or some control table, ever holds rows back
    whole: ControlTables | None = None  # of all stages as one, with the values of its states
    #: By stage and size: nanoseconds from there to the end, one step of each cell; the same for all stages of a
    #: program. Empty where some stage is not measured.
    remaining: tuple[tuple[int, ...], ...] = ()
    #: The same by length. Empty where no times by length are known, or the policy may not reorder, or there is a cell.
    lengths: tuple[LengthTimes, ...] = ()
    course: Course | None = None  # the same for all stages; None where some stage is not measured
    #: By units at work and rows: the size at which they are fastest at this stage.
    sizes: tuple[tuple[int, ...], ...] = ()


@dataclass(slots=True)
class Around:
    """What lies beside a key of a program with stages or cells: its batches, and who waits at other stages.

    Rows count as waiting elsewhere only if they can start: those without room on the device do not.
    """

    stage: int
    cell: bool
    batch: Batch | None  # of the first row; None: it begins
    here: int  # rows of that batch that stand first in line here
    joined: bool  # some row that stands at this cell has not run a step of it
    latest: Batch | None  # the only one that may be stretched; None: not in this length bucket, or in its last stage
    formed: int  # when the last batch was, whatever its lengths; -1: there is none
    active: int  # rows of the program that have begun and not ended
    beside: int  # rows that wait at this stage with lengths of other buckets
    oldest: int  # arrival of the oldest of all at this stage
    nearest: tuple[int, int]  # the last stage before this one at which rows of this bucket wait, and how many; or -1, 0
    ahead: int  # rows of this bucket that wait at later stages
    following: int  # the first later stage at which rows of this bucket wait, or -1
    before: int  # rows that wait at earlier stages that are no cells
    after: int  # rows that wait at later stages that are no cells
    late: int = 0  # rows of the first row's batch that have not reached this stage
    # where the policy reorders and times by length are known:
    longest: int = 0  # of the rows that one unit can have here
    longest_behind: int = 0  # of those at `nearest`, behind the first stage
    longest_ahead: int = 0  # of those counted in `ahead`
    fitting: int = 0  # rows at the first stage that are about as long as `longest`, if the first of them is one


@dataclass(slots=True)
class KeyView:
    """One key as a policy sees it. Times in nanoseconds."""

    ready: int  # rows that wait, at least 1
    limit: int  # the most rows one unit can have now: idle workers, the model's largest batch, rows alive
    full: int  # the most rows a unit of this key ever has: what a policy that waits waits for
    oldest: int  # arrival of the row that has waited longest
    max_delay: int
    room: int  # rows that may become or stay alive: Ebird's MaxInf less CurInf
    due: int  # when rows that could run now must be handed over to end by their deadlines; far off where none has one
    free: int  # units that may start now, each on a worker of its own
    running: int  # units at work once one more has started
    facts: Facts
    around: Around | None = None  # for a policy that sees stages, where a program has several or a cell
    alike: Alike | None = None  # for a policy that reorders, at the first stage of a program with `facts.lengths`


class Joining(NamedTuple):
    """A unit of a cell that its worker goes on with by itself, and rows that would join its rows if it ended now."""

    left: int  # steps until the unit ends by itself
    ending: int  # rows of it that end then
    staying: int  # its other rows
    stay: int  # steps that all of these have before them then
    joiners: int
    steps: int  # that the first of these has before it
    # what a step takes, of
    step_ns: int  # the unit's rows
    joined_ns: int  # those and the joiners
    staying_ns: int  # the rows that stay, 0 where none do
    both_ns: int  # those and the joiners
    apart_ns: int  # the joiners
    boundary_ns: int  # what it costs that one more unit ends and begins


@dataclass(frozen=True, slots=True)
class Cut:
    """Start a unit of the first `rows` rows as a batch of `size` >= rows, for the reason given.

    `joins`: rows that begin are to belong to this batch and catch up with it. `divide`: the first row's batch, as far
    as it stands here, is split into batches of so many rows first. `shorter` of at least 0: not the first rows but the
    first one and those next to it in order of length, so many of them before it (`KeyView.alike`).
    """

    rows: int
    size: int
    reason: Formed
    joins: Batch | None = None
    divide: int = 0
    shorter: int = -1


@dataclass(frozen=True, slots=True)
class Hold:
    """Start nothing of this key before `until`; None: not before something else happens."""

    until: int | None


def held(view: KeyView, longest: int, now: int) -> Hold | Formed:
    """Hold rows for company, or the reason why no longer: the oldest has waited `longest` ns, or one is due."""
    ends = min(view.oldest + longest, view.due)
    if now < ends:
        return Hold(ends)
    return Formed.DEADLINE if ends == view.due else Formed.HOLD_ENDED


def go(view: KeyView, rows: int, reason: Formed = Formed.IDLE) -> Cut:
    """Run so many rows now, or as many of them as can run."""
    rows = min(rows, view.limit)
    return Cut(rows, rows, Formed.FULL if rows == view.full else reason)


def go_padded(view: KeyView, rows: int, idle: Sequence[int], reason: Formed = Formed.IDLE) -> Cut:
    """The same as a batch of the size that is fastest for them, where a worker that is idle takes it."""
    cut, sizes = go(view, rows, reason), view.facts.sizes
    if not sizes:
        return cut
    size = sizes[min(view.running, len(sizes)) - 1][cut.rows - 1]
    return cut if size > idle[0] else Cut(cut.rows, size, cut.reason)


class Policy(Protocol):
    """How units are cut from one key, and what a policy needs of its device."""

    #: The only place where a policy's name stands.
    name: str
    #: It may hold rows back, whatever the control tables say.
    holds: bool
    #: It runs beside programs of other policies.
    shares_device: bool
    #: The most units that a worker may hold at once under it; None: as many as the device has.
    push_depth: int | None
    #: Threads, workers and bounds of a device follow the policy alone, never the profiles of its models.
    sizes_itself: bool
    #: It looks its decisions up in control tables, which the driver must solve.
    uses_tables: bool
    #: It looks at the batches and at other stages of a program that has several.
    sees_stages: bool
    #: The next step of a cell takes all rows that wait there, so that it can be pushed ahead.
    pushes_steps: bool
    #: A cell runs no more rows than are nearly as fast as any; others wait until some of these have ended.
    trims_cells: bool
    #: Within a key, class and priority it may let rows start before earlier ones, by their length.
    reorders: bool

    def target(self, facts: Facts) -> int | None:
        """The preferred batch size if the policy sets its own, else None."""
        ...

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        """Raise ValueError if the policy cannot serve on this device beside these others, by name."""
        ...

    def goes_on(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        """Whether a batch of so many rows would go on to `stage` as it is, if nothing else waits or comes.

        `longest`: the length of the longest of them, 0 where it is not known what lengths change.
        """
        ...

    def joins(self, joining: Joining) -> bool:
        """Whether a unit of a cell is to end now, so that rows which wait can join those that it has."""
        ...

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        """`idle`: capacities of the workers that may be handed a unit now, largest first, never empty.

        They are what the workers can take; what the device has room for is in the view.
        """
        ...


class BasePolicy:
    """What most policies say of themselves."""

    name = ""
    holds = False
    shares_device = True
    push_depth: int | None = None
    sizes_itself = False
    uses_tables = False
    sees_stages = False
    pushes_steps = False
    trims_cells = False
    reorders = False

    @classmethod
    def workers(cls, max_batch: int) -> tuple[int, ...]:
        """The capacities of the workers that it wants: one of the largest batch."""
        return (max_batch,)

    def target(self, facts: Facts) -> int | None:
        return None

    def goes_on(self, facts: Facts, stage: int, rows: int, longest: int) -> bool:
        return True

    def joins(self, joining: Joining) -> bool:
        return True

    def check(self, device: DeviceSpec, others: Mapping[str, Policy]) -> None:
        different = sorted(name for name in others if name != self.name)
        alone = [name for name in different if not others[name].shares_device]
        if different and (alone or not self.shares_device):
            lonely = self.name if not self.shares_device else alone[0]
            beside = ", ".join(different if lonely == self.name else [self.name])
            raise ValueError(f"policy: {lonely} shares a device with no other policy, here {beside}")
        if self.push_depth is not None and device.push_depth > self.push_depth:
            depth, got = self.push_depth, device.push_depth
            raise ValueError(f"push_depth: expected {depth} for the policy {self.name}, got {got}")

    def decide(self, view: KeyView, idle: Sequence[int], now: int) -> Cut | Hold:
        """Serve what waits, up to the largest batch, as soon as a worker may be handed a unit."""
        return go(view, view.ready)
