"""Whether a best-effort unit may start, and the account of those that run.

`Gate` itself tells no classes apart: units start in order of priority and arrival. `Reef` (in `reef`) decides by class,
and the other presets of `--classes` (in `presets`) differ from these two in a few methods. A preset of somebody else is
a subclass in `PRESETS`.

While there are no best-effort calls and no best-effort units, the gate is not asked, but for the share's account.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.scheduler.estimates.pairs import PairSlowdowns
from app.scheduler.forming.turns import Share, Turns
from app.scheduler.forming.workers import Workers
from app.scheduler.policies import Hold
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level, ReadySet
from app.scheduler.types import DeviceSpec, Klass, Row, Unit


class Allowance(NamedTuple):
    """A best-effort unit of at most `rows` rows may start on one of these workers.

    Any number of rows up to `exact` may run as it is. More of them must be padded to `rows`: three rows may take longer
    than four.
    """

    workers: Sequence[int]
    rows: int
    exact: int

    def within(self, capacity: int) -> Allowance:
        """The same for workers of no more than this capacity."""
        if self.rows <= capacity:
            return self
        exact = min(self.exact, capacity)
        return Allowance(self.workers, exact, exact)


class Gate:
    """One device's. This class is the preset `streams`: no classes."""

    #: Classes are told apart at every boundary, and one of several workers is kept free of best-effort work.
    separates = False
    #: Best-effort rows may run as the padding of a real-time unit.
    fills = False
    #: Real-time rows of a fast model may overtake those of a slow one, see `models`.
    overtakes = False

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        self._classes = device.classes
        self._ledger = ledger
        self._workers = workers
        self._of_share: set[int] = set()  # best-effort units that started because the share was due
        self.units: dict[int, Unit] = {}  # best-effort ones that have not ended
        self.turns = Turns()  # of best-effort programs
        self.share = Share(device.classes.share)
        self.shares = device.classes.share > 0
        self.pairs: PairSlowdowns = {}  # set by the driver

    @classmethod
    def limit(cls, device: DeviceSpec) -> DeviceSpec:
        """The device as this preset uses it."""
        return device

    # order

    def rank(self, ready: ReadySet, row: Row) -> tuple[int, ...]:
        """Of the sets that could be served, the one with the smallest rank of its first row goes first."""
        return row.order

    def level(self, row: Row) -> Level:
        """A row that waits goes before a unit that runs if its level is smaller than that of the unit's rows."""
        return (0, row.call.priority)

    # what the dispatcher reports

    def begin_step(self, now: int) -> None:
        """A new step begins."""

    def no_room(self, ready: ReadySet) -> None:
        """The device has no room for any row of this set."""

    def hold(self, ready: ReadySet, until: int | None) -> None:
        """The policy holds these real-time rows back until a time; None: it does not, or until no known one."""

    def realtime_arrived(self, program: int, at: int) -> None:
        """A real-time call has arrived."""

    # decisions

    def admit(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, now: int
    ) -> Allowance | Hold:
        """Whether a best-effort unit of this set, of at most `limit` rows, may start now."""
        return Allowance(usable, limit, limit)

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        """Of the usable workers, those for a real-time unit."""
        return usable

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        """How many of these stages or steps a worker may run as one best-effort unit."""
        return steps

    def preempts(self, unit: Unit) -> bool:
        """Whether a unit is to end at its next boundary because it is best effort."""
        return False

    # accounts

    def started(self, unit: Unit) -> None:
        if unit.klass is Klass.BEST_EFFORT:
            self.turns.take(unit.program, unit.predicted)
            self.units[unit.id] = unit
        if self.shares:
            if self.share.due and unit.klass is Klass.BEST_EFFORT:
                self._of_share.add(unit.id)
            self.share.start(unit.id, unit.klass, unit.predicted)

    def ended(self, unit: Unit, compute_ns: int) -> None:
        self.units.pop(unit.id, None)
        if self.shares:
            self._of_share.discard(unit.id)
            self.share.end(unit.id, unit.klass, compute_ns)

    def forget(self, program: int) -> None:
        """A program has been removed."""
        self.turns.forget(program)
