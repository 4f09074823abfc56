"""Ahead-of-time scheduling (Late Batching): the next step of a cell is pushed behind the one that runs.

Once a unit is on its worker's stream, those of its rows that will make a further step can be told: they have known
lengths. Behind it, no sooner than the device lets a unit be pushed, goes a unit of these rows, and of those that wait
to join them. Nothing has to be known of the first one's end: a stream runs what it is given in order. So a row that
comes waits for at most `push_ahead` and one step.

A row that is in several units is running in all of them. Each that ends takes it one step on. If one fails, the device
must say of those behind it with rows of its own that they are void: the rows then run again from where they were, and
nothing is pushed behind a unit that runs again.
"""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.rows.lanes import Rank, rank
from app.scheduler.rows.ledger import Ledger
from app.scheduler.types import Row, Stage, Unit


class Ahead:
    """By worker, the last unit of a cell that is on its stream. Rows of cells that end by themselves are not known."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.units: dict[int, Unit] = {}

    def launched(self, unit: Unit) -> None:
        """A unit is on its worker's stream."""
        state = self._ledger.states[unit.program]
        cell = state.program.stages[unit.stage]
        if (
            cell.repeats
            and not cell.own_steps
            and unit.first_run
            and not unit.void
            and state.policy.pushes_steps
            and self.going_on(unit)
        ):
            self.units[unit.worker] = unit

    def forget(self, unit: Unit) -> None:
        """It has ended, or is the last no more."""
        if self.units.get(unit.worker) is unit:
            del self.units[unit.worker]

    def fail(self, unit: Unit, behind: Sequence[Unit]) -> None:
        """It has failed: those behind it with rows of its own are void, and nothing is pushed behind them."""
        if self._ledger.further:
            rows = set(unit.rows)
            for other in behind:
                if not rows.isdisjoint(other.rows):
                    other.void = True
                    self.forget(other)

    def first(self, usable: Sequence[int]) -> tuple[Rank, Unit] | None:
        """Of those on workers that may be handed a unit now, the one whose rows go first."""
        best: tuple[Rank, Unit] | None = None
        for worker in usable:
            unit = self.units.get(worker)
            rows = self.going_on(unit) if unit is not None else []
            if unit is not None and rows and not self._others_wait(unit):
                own = min(map(rank, rows))
                if best is None or own < best[0]:
                    best = own, unit
        return best

    def going_on(self, unit: Unit) -> list[Row]:
        """The rows of a unit that will make a further step behind it."""
        further = self._ledger.further
        cell = self._ledger.states[unit.program].program.stages[unit.stage]
        return [
            row for row in unit.rows if row.call.alive and steps_left(row, cell) > unit.steps + further.get(row, 0)
        ]  # fmt: skip

    def push(self, unit: Unit, rows: Sequence[Row]) -> None:
        """Some of its rows are in a unit behind it as well."""
        self.forget(unit)
        further = self._ledger.further
        for row in rows:
            further[row] = further.get(row, 0) + 1

    def _others_wait(self, unit: Unit) -> bool:
        """Rows of the program wait at other stages, which a policy may want to let go first."""
        state = self._ledger.states[unit.program]
        ready = self._ledger.ready.at((unit.program, unit.stage, 0), unit.klass)
        return state.waiting_of(unit.klass) > ready.count


def steps_left(row: Row, cell: Stage) -> int:
    """Steps that a row is still to make at its cell, as far as anybody knows."""
    most, length = cell.most_steps, 0 if cell.own_steps else row.length
    return min(length or most, most or length) - row.steps
