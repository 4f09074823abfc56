"""Programs, calls, and the state of each row. Every change of a row's or a call's state is made here.

A call leaves exactly once. Its waiting rows leave with it; its running rows end when their unit finishes. A closed
program is forgotten with its last call and unit. A row counts as alive on the device from its first unit until it ends.
If its first unit fails, it no longer counts: the device keeps nothing of it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import groupby

from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Key, ReadyTable
from app.scheduler.types import Call, Drop, Klass, Reason, Row, RowState

LATE_TIMER_NS = 2_000_000  # timers count as at least so late: event loops wake up to a millisecond late
_LATER_NS, _SOONER_NS = 495_000, 5_000  # 99 to 1; a hold that ends too soon costs only device time
_SLACK = 64  # deadlines of calls that have left, tolerated before the heap is rebuilt


class Event(Enum):
    """What happens to a row. The value says when."""

    START = "its unit is handed to a worker"
    RETURN = "its unit ran well, and it waits for the next"
    STAY = "others of its unit have ended, and the worker continues with it"
    FAIL = "its unit failed, and it waits to run again"
    END = "its last unit ran well, or failed, or its call left"


#: Every change of a row's state: what leads where. Anything else is a fault.
TRANSITIONS = {
    (RowState.WAITING, Event.START): RowState.STARTING,
    (RowState.WAITING, Event.END): RowState.ENDED,
    (RowState.STARTING, Event.RETURN): RowState.BETWEEN,
    (RowState.STARTING, Event.STAY): RowState.RUNNING,
    (RowState.STARTING, Event.FAIL): RowState.WAITING,
    (RowState.STARTING, Event.END): RowState.ENDED,
    (RowState.BETWEEN, Event.START): RowState.RUNNING,
    (RowState.BETWEEN, Event.END): RowState.ENDED,
    (RowState.RUNNING, Event.RETURN): RowState.BETWEEN,
    (RowState.RUNNING, Event.STAY): RowState.RUNNING,
    (RowState.RUNNING, Event.FAIL): RowState.BETWEEN,
    (RowState.RUNNING, Event.END): RowState.ENDED,
}
# By event, because this is looked up per row.
_START, _RETURN, _STAY, _FAIL, _END = (
    {state: target for (state, event), target in TRANSITIONS.items() if event is one} for one in Event
)
_WAITING, _BETWEEN, _BEST_EFFORT = RowState.WAITING, RowState.BETWEEN, Klass.BEST_EFFORT


class Ledger:
    """`max_alive`: of the device. `alive`: rows that have started and not ended. `done`, `drops`: for the next Step,
    which takes the lists.
    """

    def __init__(self, max_alive: int) -> None:
        self._max_alive = max_alive
        self.states: dict[int, ProgramState] = {}
        self.ready = ReadyTable()
        self.calls: dict[int, Call] = {}
        self.deadlines = Deadlines(self.calls)
        self.alive = 0
        self.lost = False  # the device is lost: nothing starts again
        self.done: list[Call] = []
        self.drops: list[Drop] = []
        self._sequence = 0

    def enter(self, call: Call, state: ProgramState) -> None:
        """A call arrives: all its rows enter the ready table."""
        rows = call.rows
        call.left = n = len(rows)
        self.calls[call.id] = call
        queue = state.queue
        queue.calls += 1
        queue.asked[call.klass] += n
        queue.waiting[call.klass] += n
        if call.deadline is not None:
            self.deadlines.add(call.deadline, call.id)
        priority, arrived, sequence = call.priority, call.arrived, self._sequence
        call.first = sequence
        self._sequence += n
        entry = None if call.klass is _BEST_EFFORT else state.entry
        for index, row in enumerate(rows):
            row.call = call
            row.order = (priority, arrived, sequence + index)
        if entry is not None:
            entry.add(rows)
        else:
            for key, group in groupby(rows, key=lambda row: key_of(row, state)):
                self.ready.at(key, call.klass).add(list(group))

    def room(self, state: ProgramState, kept: int = 0, kept_of_own: int = 0) -> int:
        """New rows of a program that may start now, by the bounds on alive rows of the device and the program.

        `kept`, `kept_of_own`: of the device's and the program's, for others.
        """
        own = state.program.max_alive - kept_of_own - state.queue.alive
        return max(0, min(self._max_alive - kept - self.alive, own))

    def counts(self) -> dict[str, int]:
        """All counts of calls, rows and units, by name: 0 once the last call has left and its unit has ended."""
        states = self.states.values()
        return {
            "rows alive": self.alive + sum(state.queue.alive for state in states),
            "rows waiting": sum(sum(state.queue.waiting) for state in states),
            "sets with rows": len(self.ready.nonempty),
            "calls of programs": sum(state.queue.calls for state in states),
            "batches": sum(len(state.batches.batches) for state in states if state.batches is not None),
        }

    def start(self, rows: Sequence[Row], state: ProgramState) -> None:
        """Rows taken from the ready table are handed to a worker as one unit."""
        new = 0
        for row in rows:
            state_of_row = row.state
            new += state_of_row is _WAITING
            row.state = _START[state_of_row]
        self.alive += new
        queue = state.queue
        queue.alive += new
        queue.waiting[rows[0].call.klass] -= len(rows)

    def make_ready(self, rows: Sequence[Row], state: ProgramState) -> None:
        """Rows that ran (at least one) enter the ready table again, at the stage they have reached."""
        for row in rows:
            row.state = _RETURN[row.state]
        klass = rows[0].call.klass
        state.queue.waiting[klass] += len(rows)
        if len(state.program.stages) == 1 and state.program.stages[0].repeats:  # a cell is one key
            self.ready.at(key_of(rows[0], state), klass).put_back(rows)
            return
        for key, group in groupby(rows, key=lambda row: key_of(row, state)):
            self.ready.at(key, klass).put_back(list(group))

    def stay(self, row: Row) -> None:
        """A worker has continued with this row."""
        row.state = _STAY[row.state]

    def retry(self, rows: list[Row], state: ProgramState) -> None:
        """Rows of a failed unit, all of one class, wait to run again as one unit."""
        for row in rows:
            row.state = _FAIL[row.state]
        new = sum(row.state is _WAITING for row in rows)
        self.alive -= new
        state.queue.alive -= new
        if state.batches is not None:
            state.batches.split_off(rows)
        klass = rows[0].call.klass
        state.queue.waiting[klass] += len(rows)
        self.ready.add_again(key_of(rows[0], state), klass, rows)

    def end(self, row: Row) -> None:
        """The row has ended: it holds nothing on the device any more."""
        state = self.states.get(row.call.program)  # None: the program was forgotten with its last call
        if row.batch is not None and state is not None and state.batches is not None:
            state.batches.leave(row)
        alive = row.state is not _WAITING
        row.state = _END[row.state]
        if alive:
            self.alive -= 1
            if state is not None:
                state.queue.alive -= 1

    def end_rows(self, rows: Sequence[Row], state: ProgramState) -> None:
        """Rows of a unit end that ran well. A call is done with its last row, unless it has left."""
        queue, batches = state.queue, state.batches
        self.alive -= len(rows)
        queue.alive -= len(rows)
        for row in rows:
            if batches is not None:
                batches.leave(row)
            row.state = _END[row.state]
            call = row.call
            if not call.alive:
                continue
            call.left -= 1
            if not call.left:
                call.alive = False
                del self.calls[call.id]
                queue.calls -= 1
                self.done.append(call)

    def drop(self, call: Call, reason: Reason, row: int = -1) -> None:
        """The call leaves without an answer. The next Step gives the reason."""
        self.leave(call)
        self.drops.append(Drop(call, reason, row))

    def leave(self, call: Call) -> None:
        """The call is over: its waiting rows are forgotten, the results of its running rows are discarded."""
        call.alive = False
        del self.calls[call.id]
        state = self.states[call.program]
        state.queue.calls -= 1
        if call.left:
            for row in call.rows:
                if row.state is _WAITING or row.state is _BETWEEN:
                    self.ready.forget(row, key_of(row, state))
                    self.end(row)
                    state.queue.waiting[call.klass] -= 1
        self.forget_if_over(state)

    def forget_if_over(self, state: ProgramState) -> None:
        """Forget a closed program that has no calls left, and no rows of calls that have left in units."""
        program = state.program.id
        if state.closed and not state.queue.calls and not state.queue.alive and program in self.states:
            del self.states[program]
            self.ready.drop_program(program)


def key_of(row: Row, state: ProgramState) -> Key:
    """The key at which a row waits. A cell has one key for all lengths: its rows make single steps, without padding."""
    program, stage = state.program, row.stage
    bucketed = program.length_buckets and not program.stages[stage].repeats
    return (program.id, stage, bisect_left(program.length_buckets, row.length) if bucketed else 0)


class Deadlines:
    """A heap of (deadline, call id) for the calls that have not left.

    An entry stays when its call leaves or its deadline changes. Such stale entries are skipped when their time comes,
    and the heap is rebuilt when it holds more of them than calls.

    `timer_ns`: how late the driver's timers are: a hold must end that much before a deadline requires it. It is later
    than 99 of 100 (stochastic approximation, Robbins and Monro, 1951). Its bound keeps a stall from counting as normal.
    """

    __slots__ = ("_calls", "heap", "timer_ns")

    def __init__(self, calls: Mapping[int, Call]) -> None:
        self._calls = calls
        self.heap: list[tuple[int, int]] = []  # (deadline, call id)
        self.timer_ns = LATE_TIMER_NS

    def add(self, deadline: int, call_id: int) -> None:
        heap = self.heap
        if len(heap) > 2 * len(self._calls) + _SLACK:
            heap[:] = [entry for entry in heap if self._holds(entry)]
            heapify(heap)
        heappush(heap, (deadline, call_id))

    def passed(self, now: int) -> Iterator[Call]:
        """Remove and yield the calls whose deadline is not after `now`. The caller must drop each of them."""
        heap = self.heap
        while heap and heap[0][0] <= now:
            entry = heappop(heap)
            if self._holds(entry):
                yield self._calls[entry[1]]

    def next(self) -> int | None:
        """The earliest deadline of a call that has not left."""
        heap = self.heap
        while heap and not self._holds(heap[0]):
            heappop(heap)
        return heap[0][0] if heap else None

    def woke(self, late_ns: int) -> None:
        """A timer has fired so late."""
        if late_ns > self.timer_ns:
            self.timer_ns = min(10 * LATE_TIMER_NS, self.timer_ns + _LATER_NS)
        else:
            self.timer_ns = max(LATE_TIMER_NS, self.timer_ns - _SOONER_NS)

    def _holds(self, entry: tuple[int, int]) -> bool:
        call = self._calls.get(entry[1])
        return call is not None and call.deadline == entry[0]
