"""Who is here: programs, calls, and where each row stands. Every change of a row's or a call's state is made here.

A call leaves exactly once, through `complete` or `leave`; its rows that wait leave with it, its rows that run are
ended by whoever hears that their unit has finished. A program that was closed is forgotten with its last call and unit.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from app.scheduler.deadlines import Deadlines
from app.scheduler.program import ProgramState
from app.scheduler.ready import Key, ReadyTable
from app.scheduler.types import Call, Drop, Reason, Row, RowState

_ENDED, _RUNNING, _WAITING = RowState.ENDED, RowState.RUNNING, RowState.WAITING  # looked up once, used per row


class Ledger:
    """`alive`: rows that have started and not ended. `done`, `drops`: what the next Step says; it takes the lists."""

    def __init__(self) -> None:
        self.states: dict[int, ProgramState] = {}
        self.ready = ReadyTable()
        self.calls: dict[int, Call] = {}
        self.deadlines = Deadlines(self.calls)
        self.alive = 0
        self.done: list[Call] = []
        self.drops: list[Drop] = []
        self._sequence = 0

    def enter(self, call: Call, state: ProgramState) -> None:
        """A call comes: all its rows stand in the ready table."""
        rows = call.rows
        call.left = n = len(rows)
        self.calls[call.id] = call
        state.calls += 1
        state.rate.arrive(n)
        if call.deadline is not None:
            self.deadlines.add(call.deadline, call.id)
        arrived, sequence = call.arrived, self._sequence
        for index, row in enumerate(rows):
            row.call = call
            row.index = index
            row.order = (arrived, sequence + index)
        self._sequence += n
        state.waiting += n
        entry = state.entry
        for row in rows:
            (entry or self.ready.at(key_of(row, state))).add(row)

    def start(self, rows: Sequence[Row], state: ProgramState) -> None:
        """Rows taken from the ready table go to a worker as one unit."""
        for row in rows:
            row.state = _RUNNING
            if not row.started:
                row.started = True
                self.alive += 1
        state.waiting -= len(rows)
        state.units += 1

    def make_ready(self, row: Row, state: ProgramState) -> None:
        """A row that ran stands in the ready table again, at the stage it has reached."""
        row.state = _WAITING
        state.waiting += 1
        self.ready.at(key_of(row, state)).add(row)

    def retry(self, rows: list[Row], state: ProgramState) -> None:
        """Rows of a unit that failed wait to be run again as they are."""
        for row in rows:
            row.state = _WAITING
        state.waiting += len(rows)
        self.ready.at(key_of(rows[0], state)).add_retry(rows)

    def end(self, row: Row) -> None:
        """The row holds nothing on the device any more."""
        row.state = _ENDED
        if row.started:
            row.started = False
            self.alive -= 1

    def complete(self, call: Call, state: ProgramState) -> None:
        """The call's last row has ended well. As `leave`, without the search for rows that wait."""
        call.alive = False
        del self.calls[call.id]
        state.calls -= 1
        self.done.append(call)

    def drop(self, call: Call, reason: Reason, row: int = -1) -> None:
        """The call leaves without an answer, and its caller hears why."""
        self.leave(call)
        self.drops.append(Drop(call, reason, row))

    def leave(self, call: Call) -> None:
        """The call is over: its waiting rows are forgotten, its running rows finish unheard."""
        call.alive = False
        del self.calls[call.id]
        state = self.states[call.program]
        state.calls -= 1
        if call.left:
            for row in call.rows:
                if row.state is _WAITING:
                    self.end(row)
                    state.waiting -= 1
                    self.ready.at(key_of(row, state)).forget(1)
        self.forget_if_over(state)

    def forget_if_over(self, state: ProgramState) -> None:
        """A closed program of which nothing is left is forgotten."""
        program = state.program.id
        if state.closed and not state.calls and not state.units and program in self.states:
            del self.states[program]
            self.ready.drop_program(program)


def key_of(row: Row, state: ProgramState) -> Key:
    buckets = state.program.length_buckets
    return (state.program.id, row.stage, bisect_left(buckets, row.length) if buckets else 0)
