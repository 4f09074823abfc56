"""Who is served next: by class, priority and age; of several models a much faster one may overtake.

Sets are served in order of their oldest row, so a busy model cannot starve a quiet one. Priorities are strict.

A model overtakes by its index, the age of its oldest row times the throughput of its next batch, if that is `_GAIN`
times that of the oldest row, and the overtaken row has not arrived much earlier (docs/theory/order-and-share.md).

Rows of a cell are older than most that wait, step after step. So programs take turns with it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level, ReadySet, ReadyTable
from app.scheduler.types import Klass, Row

_GAIN = 3.0

#: Of a program: the rank of its first set, that set, and its first row.
FirstRow = tuple[tuple[int, ...], ReadySet, Row]


class Order:
    """Over the ready table of one device. `running`: units that may run at once."""

    def __init__(self, table: ReadyTable, states: Mapping[int, ProgramState], running: int) -> None:
        self._table = table
        self._states = states
        self._running = running
        # by class: the id of the last unit after which it was the turn of cells again, and when it will be
        self.last = [-1 for _ in Klass]
        self.turn_ends = [0 for _ in Klass]

    def rank(self, row: Row) -> tuple[int, ...]:
        """Of a set, by its first row. The smallest is served first."""
        return (row.call.klass, *row.order)

    def level(self, row: Row) -> Level:
        """A waiting row takes precedence over a running unit whose first row has a larger level."""
        return (row.call.klass, row.call.priority)

    def _rank_of(self, ready: ReadySet) -> tuple[int, ...]:
        """The rank of a set in which rows wait.

        Rows that run again are served before all others of their key and priority, so that the bad row among them is
        found soon and the good ones finish.
        """
        row = ready.head()
        own = best = self.rank(row)
        if ready.again:
            others = self._table.at(ready.key, ready.klass)
            if others.count and others.head().order[0] == row.order[0]:
                best = min(own, self.rank(others.head()))
        return (*best, not ready.again, *own)

    def next(self, held: Collection[ReadySet], now: int) -> ReadySet | None:
        """The set to serve next among those not held back, or None."""
        heads: dict[int, FirstRow] = {}
        for ready in self._table.nonempty:
            if ready in held:
                continue
            row, program = ready.head(), ready.key[0]
            rank = self._rank_of(ready)
            if program not in heads or rank < heads[program][0]:
                heads[program] = rank, ready, row
        if not heads:
            return None
        level, oldest, row = min(heads.values())
        if len(heads) == 1:
            return oldest
        same_level = [head for head in heads.values() if head[0][:2] == level[:2]]
        if self._states[oldest.key[0]].last_cell > self.last[oldest.klass]:
            _, oldest, row = min(same_level, key=self._turn)
        if oldest.klass is Klass.BEST_EFFORT:
            return oldest
        return self._soonest(same_level, oldest, row, now)

    def _turn(self, head: FirstRow) -> tuple[int, ...]:
        """The smallest is next, once a cell has run."""
        rank, ready, _ = head
        return (max(self.last[ready.klass], self._states[ready.key[0]].last_cell), *rank)

    def _soonest(self, heads: Collection[FirstRow], oldest: ReadySet, first_row: Row, now: int) -> ReadySet:
        """Of real-time sets of one priority: `oldest`, or one that overtakes it.

        A program with unknown times, or whose rows make several steps, neither overtakes nor is overtaken.
        """
        lead_ns, least = 0.0, 0.0
        found: list[tuple[float, int, ReadySet]] = []
        for _, ready, row in heads:
            program, stage, _ = ready.key
            state = self._states[program]
            by_stage = state.estimates.curves.speeds
            if not by_stage and ready is oldest:
                return oldest
            if not by_stage:
                continue
            speeds, rows = by_stage[stage], min(ready.count, state.full[stage])
            speed = speeds[rows - 1] / state.estimates.scale
            saved = 1 - speeds[0] / speeds[-1]
            lead_ns += saved * rows / speed / self._running
            arrived = row.call.arrived
            index = speed * (now - arrived + 1)  # + 1: of rows that arrive now the fastest is first
            found.append((index, arrived, ready))
            if ready is oldest:
                least = _GAIN * index
        latest = first_row.call.arrived + lead_ns
        best, chosen = 0.0, oldest
        for index, arrived, ready in found:
            if index > best and arrived <= latest and (ready is oldest or index >= least):
                best, chosen = index, ready
        return chosen
