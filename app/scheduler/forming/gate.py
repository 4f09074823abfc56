"""Decides whether best-effort units may start, and keeps account of those that run.

`Gate` itself ignores classes: units start in order of priority and arrival. `Reef` (in `reef`) decides by class. The
other presets of `--classes` (in `presets`) override a few methods of these two. Another preset is one more subclass in
`PRESETS`.

While there are no best-effort calls or units, only the share's account calls the gate.
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

    Up to `exact` rows may run unpadded. More rows must be padded to `rows`, because three rows may take longer than
    four.
    """

    workers: Sequence[int]
    rows: int
    exact: int

    def within(self, capacity: int) -> Allowance:
        """The same, limited to this capacity."""
        if self.rows <= capacity:
            return self
        exact = min(self.exact, capacity)
        return Allowance(self.workers, exact, exact)


class Gate:
    """Of one device. This class is the preset `streams`, which ignores classes."""

    #: Real-time rows go first at every boundary, and one of several workers is kept free of best-effort work.
    separates = False
    #: Best-effort rows may run as the padding of a real-time unit.
    fills = False
    #: Real-time rows of a fast model may overtake those of a slow one, see `model_order`.
    overtakes = False

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers) -> None:
        self._classes = device.classes
        self._ledger = ledger
        self._workers = workers
        self._of_share: set[int] = set()  # best-effort units that started because the share was due
        self.best_effort_units: dict[int, Unit] = {}  # those that have not ended
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
        """The rank of a set, by its first row. The set with the smallest rank is served first."""
        return row.order

    def level(self, row: Row) -> Level:
        """A waiting row takes precedence over a running unit whose first row has a larger level."""
        return (0, row.call.priority)

    # reports of the dispatcher

    def begin_step(self, now: int) -> None:
        """A new step begins."""

    def no_room(self, ready: ReadySet) -> None:
        """The device has no room for any row of this set."""

    def hold(self, ready: ReadySet, until: int | None) -> None:
        """The policy holds these real-time rows until a time. None: it does not hold them, or the time is unknown."""

    def realtime_arrived(self, program: int, at: int) -> None:
        """A real-time call has arrived."""

    # decisions

    def admit(
        self, ready: ReadySet, state: ProgramState, usable: Sequence[int], limit: int, now: int
    ) -> Allowance | Hold:
        """Whether a best-effort unit of this set, of at most `limit` rows, may start now."""
        return Allowance(usable, limit, limit)

    def for_realtime(self, usable: Sequence[int]) -> Sequence[int]:
        """Those of the usable workers that a real-time unit may take."""
        return usable

    def steps(self, steps: int, rows: Sequence[Row], size: int, stage: int, state: ProgramState, now: int) -> int:
        """How many of `steps` stages or steps a worker may run as one best-effort unit."""
        return steps

    def preempts(self, unit: Unit) -> bool:
        """Whether a best-effort unit is to end at its next boundary."""
        return False

    # accounts

    def started(self, unit: Unit) -> None:
        if unit.klass is Klass.BEST_EFFORT:
            self.turns.take(unit.program, unit.predicted)
            self.best_effort_units[unit.id] = unit
        if self.shares:
            if self.share.due and unit.klass is Klass.BEST_EFFORT:
                self._of_share.add(unit.id)
            self.share.start(unit.id, unit.klass, unit.predicted)

    def ended(self, unit: Unit, compute_ns: int) -> None:
        self.best_effort_units.pop(unit.id, None)
        if self.shares:
            self._of_share.discard(unit.id)
            self.share.end(unit.id, unit.klass, compute_ns)

    def forget(self, program: int) -> None:
        """A program has been removed."""
        self.turns.forget(program)
