"""The scheduler: told what happened and what time it is, it says what to do.

Rules
    1. Time arrives only as `now`: integer nanoseconds on the driver's clock, never backwards.
    2. Effects leave only in a Step. Nothing here waits, sends, allocates tensors or logs.
    3. Payloads never enter: a row is a slot number and a length.
    4. Equal inputs give equal Steps. No clock, no randomness, no iteration over unordered sets.

The driver feeds inputs (`submit`, `finished`, `cancel`, `tick`, ...) and then calls `step(now)` once for all inputs of
one turn, and carries out all of the Step: starts its units, resolves its calls, fails its drops, arms one timer.

The algorithm, each step
    Calls whose deadline has passed leave. Then, while a worker is idle: the arbiter names the key with the best head
    (class, priority, oldest); a group of that key that must be re-run goes as it is; otherwise the key's policy cuts a
    unit or holds the key back until a time. A finished unit moves its rows to their next stage, or its calls to `done`.

Failure
    A unit that fails with several rows is split in halves that return to the head of their key, until the culprit is
    alone and fails its call only. When most of a program's recent units failed, the program is broken, not a row, and
    units fail whole. Out of memory halves too, and caps that worker for that program from then on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from . import arbiter
from .deadlines import Deadlines
from .policies import Cut, Hold, KeyView
from .preferred import preferred_size
from .ready import Key, ReadySet, ReadyTable
from .state import ProgramState
from .types import (
    Call,
    DeviceSpec,
    Drop,
    Fault,
    Klass,
    Outcome,
    Program,
    Reason,
    Refusal,
    Row,
    RowState,
    Step,
    Unit,
)

_ENDED, _RUNNING, _WAITING = RowState.ENDED, RowState.RUNNING, RowState.WAITING  # looked up once, used per row
_MIN_RETRY_NS = 1_000_000  # a hint of 0 would send the client straight back


class Scheduler:
    """One device's scheduler. See the module's text for its rules."""

    def __init__(self, device: DeviceSpec, *, split_failed: bool = True) -> None:
        if not device.workers:
            raise ValueError("workers: expected at least one")
        self.device = device
        self.split_failed = split_failed
        self._programs: dict[int, ProgramState] = {}
        self._ready = ReadyTable()
        self._calls: dict[int, Call] = {}
        self._units: dict[int, Unit] = {}
        self._load = [0] * len(device.workers)  # units handed to each worker
        self._caps: dict[tuple[int, int], int] = {}  # (worker, program) -> rows that fitted in memory
        self._alive = 0  # rows that have started and not ended
        self._deadlines = Deadlines(self._calls)
        self._sequence = 0
        self._next_unit = 0
        self._lost = False
        self._done: list[Call] = []
        self._drop: list[Drop] = []

    # inputs

    def add_program(self, program: Program, now: int) -> None:
        """Open a program to calls. Raises ValueError for an unknown policy."""
        entry = None if program.length_buckets else self._ready.at((program.id, 0, 0))
        self._programs[program.id] = ProgramState(program, entry, now)

    def remove_program(self, program: int, now: int) -> None:
        """Close a program to new calls; it is forgotten when its last call has left."""
        state = self._programs[program]
        state.closed = True
        self._forget_if_over(program, state)

    def admit(self, program: int, n: int, klass: Klass, deadline: int | None, now: int) -> Refusal | None:
        """Whether a call of `n` rows may come now. Changes nothing."""
        state = self._programs.get(program)
        if state is None or state.closed:
            return Refusal(Reason.CLOSED, _MIN_RETRY_NS)
        if self._lost:
            return Refusal(Reason.DEVICE, _MIN_RETRY_NS)
        if state.waiting + n > state.program.max_queue:
            return Refusal(Reason.QUEUE_FULL, max(_MIN_RETRY_NS, self.backlog_ns(now)))
        if deadline is not None:
            backlog = self.backlog_ns(now)
            if now + backlog + state.time(min(n, state.program.max_batch)) > deadline:
                return Refusal(Reason.DEADLINE_UNREACHABLE, max(_MIN_RETRY_NS, backlog))
        return None

    def submit(self, call: Call, now: int) -> None:
        """A call enters: all its rows stand in the ready table. The caller has asked `admit`.

        If the device or the program has gone since then, the call leaves with the next Step.
        """
        state = self._programs.get(call.program)
        if self._lost or state is None:
            call.alive = False
            self._drop.append(Drop(call, Reason.DEVICE if self._lost else Reason.CLOSED))
            return
        rows = call.rows
        call.left = n = len(rows)
        self._calls[call.id] = call
        state.calls += 1
        state.rate.arrive(n)
        if call.deadline is not None:
            self._deadlines.add(call.deadline, call.id)
        arrived, sequence = call.arrived, self._sequence
        for index, row in enumerate(rows):
            row.call = call
            row.index = index
            row.order = (arrived, sequence + index)
        self._sequence += n
        state.waiting += n
        entry = state.entry
        for row in rows:
            (entry or self._ready.at(self._key(row, state))).add(row)

    def cancel(self, call_id: int, now: int) -> None:
        """The caller has gone: rows that wait are forgotten, rows that run finish unheard. Unknown ids are ignored."""
        call = self._calls.get(call_id)
        if call is not None:
            self._leave(call)

    def launched(self, unit_id: int, now: int) -> None:
        """The unit is on the device's stream. Nothing depends on it while units run one at a time per worker."""

    def finished(self, outcome: Outcome, now: int) -> None:
        """A unit has ended, well or not. Outcomes of unknown units (a device lost earlier) are ignored."""
        unit = self._units.pop(outcome.unit_id, None)
        if unit is None:
            return
        self._load[unit.worker] -= 1
        state = self._programs[unit.program]
        if unit.first_run:
            state.recent.append(outcome.error is Fault.MODEL)
        if outcome.error is None:
            state.latency[unit.stage].observe(unit.size * unit.steps, outcome.compute_ns)
            self._advance(unit, outcome, state)
        elif outcome.error is Fault.DEVICE:
            self._lose_device(unit)
        else:
            self._fail(unit, outcome.error, state)
        self._forget_if_over(unit.program, state)

    def tick(self, now: int) -> None:
        """The rate monitor's window has closed."""
        for state in self._programs.values():
            state.rate.tick(now)

    # the one output

    def step(self, now: int) -> Step:
        """What to do now, given all inputs so far."""
        for call in self._deadlines.passed(now):
            self._leave(call)
            self._drop.append(Drop(call, Reason.DEADLINE))
        start: list[Unit] = []
        wake_at = self._dispatch(start, now)
        deadline = self._deadlines.next()
        if wake_at is None or (deadline is not None and deadline < wake_at):
            wake_at = deadline
        step = Step(start, self._done, self._drop, wake_at)
        if self._done:
            self._done = []
        if self._drop:
            self._drop = []
        return step

    # what others may read

    @property
    def alive(self) -> int:
        """Rows that have started and not ended."""
        return self._alive

    @property
    def calls(self) -> Iterable[Call]:
        """Calls that have not left, in order of submission."""
        return self._calls.values()

    @property
    def running(self) -> Iterable[Unit]:
        """Units handed out and not finished, oldest first."""
        return self._units.values()

    def waiting(self, program: int) -> int:
        """Rows of a program in the ready table."""
        state = self._programs.get(program)
        return state.waiting if state else 0

    def rate(self, program: int) -> float:
        """Rows per second over the last closed window."""
        state = self._programs.get(program)
        return state.rate.rate if state else 0.0

    def preferred(self, program: int) -> int:
        """The preferred batch size at that rate."""
        state = self._programs.get(program)
        return preferred_size(state.rate.rate, state.latency[0], state.program.max_batch) if state else 0

    def scale(self, program: int) -> float:
        """Observed over profiled batch time, first stage."""
        state = self._programs.get(program)
        return state.latency[0].scale if state else 1.0

    def backlog_ns(self, now: int) -> int:
        """Time until all that waits and runs now would be done, from measured batch times; 0 where none are known."""
        total = 0
        for unit in self._units.values():
            total += max(0, unit.started + unit.predicted - now)
        for state in self._programs.values():
            full, rest = divmod(state.waiting, state.program.max_batch)
            total += full * state.time(state.program.max_batch) + (state.time(rest) if rest else 0)
        return total // self.device.max_running

    # forming units

    def _dispatch(self, start: list[Unit], now: int) -> int | None:
        """Start what can start; return the earliest time at which a held key wants to be asked again."""
        held: list[Key] = []
        wake_at: int | None = None
        while not self._lost and len(self._units) < self.device.max_running * self.device.push_depth:
            idle = [w for w, load in enumerate(self._load) if load < self.device.push_depth]
            if not idle:
                break
            ready = arbiter.first(self._ready.waiting(), held)
            if ready is None:
                break
            hold = self._serve(ready, idle, start, now)
            if hold is not None:
                held.append(ready.key)
                if hold.until is not None and (wake_at is None or hold.until < wake_at):
                    wake_at = hold.until
        return wake_at

    def _serve(self, ready: ReadySet, idle: Sequence[int], start: list[Unit], now: int) -> Hold | None:
        """Start one unit of this key, or say until when the key is held back."""
        program, stage, _ = ready.key
        state = self._programs[program]
        # Rows that start take up room on the device; those that go on, in a cell or at a later stage, have theirs.
        room = self.device.max_alive - self._alive
        going = ready.going() if stage or state.program.stages[0].repeats else 0
        capacity = {worker: min(self._capacity(worker, state.program), room + going) for worker in idle}
        limit = max(capacity.values())
        if limit < 1:
            return Hold(None)
        group = ready.retry() if room or stage else None
        if group is not None:
            most = limit if stage else min(limit, room)
            if len(group) > most:  # the cap has fallen since: what fits goes, the rest stays first in line
                ready.add_retry(group[most:])
                group = group[:most]
            self._start(ready.key, group, Cut(len(group), len(group), "retry"), capacity, start, now)
            return None
        full = max(self._capacity(w, state.program) for w in range(len(self.device.workers)))
        full = min(full, self.device.max_alive)
        view = KeyView(ready.free_count, limit, full, ready.oldest(), state.program.max_delay_ns)
        decision = state.policy.decide(view, sorted(capacity.values(), reverse=True), now)
        if isinstance(decision, Hold):
            return decision
        self._start(ready.key, ready.take(decision.rows, room), decision, capacity, start, now)
        return None

    def _capacity(self, worker: int, program: Program) -> int:
        capacity = min(self.device.workers[worker].capacity, program.max_batch)
        return min(capacity, self._caps.get((worker, program.id), capacity))

    def _start(
        self, key: Key, rows: list[Row], cut: Cut, capacity: dict[int, int], start: list[Unit], now: int
    ) -> None:
        """Hand a unit to the smallest worker that takes its size, so that larger ones stay free for larger units.

        Among equals to the one with the least to do: with a push depth over 1, several may be taken as idle.
        """
        size = max(cut.size, len(rows))
        worker = min((w for w, c in capacity.items() if c >= size), key=lambda w: (capacity[w], self._load[w], w))
        program, stage, _ = key
        state = self._programs[program]
        for row in rows:
            row.state = _RUNNING
            if not row.started:
                row.started = True
                self._alive += 1
        state.waiting -= len(rows)
        unit = Unit(
            self._next_unit, worker, program, stage, rows, size, cut.reason, now,
            state.latency[stage].predict(size), cut.reason != "retry",
        )  # fmt: skip
        self._next_unit += 1
        self._units[unit.id] = unit
        self._load[worker] += 1
        start.append(unit)

    # ends of units

    def _advance(self, unit: Unit, outcome: Outcome, state: ProgramState) -> None:
        """Rows that ran move to their next stage, or end; a call whose last row has ended is done."""
        repeats = state.program.stages[unit.stage].repeats
        last = unit.stage + 1 == len(state.program.stages)
        for position, row in enumerate(unit.rows):
            call = row.call
            if not call.alive:
                self._end(row)
            elif repeats and position not in outcome.ended:
                self._make_ready(row, state)
            elif not last:
                row.stage += 1
                self._make_ready(row, state)
            else:
                self._end(row)
                call.left -= 1
                if not call.left:  # `_leave`, without the search for rows that wait
                    call.alive = False
                    del self._calls[call.id]
                    state.calls -= 1
                    self._done.append(call)

    def _fail(self, unit: Unit, error: Fault, state: ProgramState) -> None:
        """Halve and re-run, or fail the calls of the unit's rows."""
        for row in unit.rows:
            if unit.stage == 0 or not row.call.alive:
                self._end(row)
        rows = [row for row in unit.rows if row.call.alive]
        if error is Fault.OOM and unit.size > 1:
            key = (unit.worker, unit.program)
            self._caps[key] = min(max(1, unit.size // 2), self._caps.get(key, unit.size))
        elif error is Fault.MODEL and (not self.split_failed or state.broken or len(unit.rows) == 1):
            self._fail_calls(rows, Reason.MODEL, alone=len(unit.rows) == 1)
            return
        elif error is Fault.OOM:
            self._fail_calls(rows, Reason.OOM, alone=True)
            return
        middle = (len(rows) + 1) // 2
        for half in (rows[middle:], rows[:middle]):
            if half:
                self._retry(half, unit, state)

    def _retry(self, rows: list[Row], unit: Unit, state: ProgramState) -> None:
        for row in rows:
            row.state = _WAITING
        state.waiting += len(rows)
        self._ready.at(self._key(rows[0], state)).add_retry(rows)

    def _fail_calls(self, rows: list[Row], reason: Reason, *, alone: bool) -> None:
        for row in rows:
            self._end(row)
            if row.call.alive:
                self._leave(row.call)
                self._drop.append(Drop(row.call, reason, row.index if alone else -1))

    def _lose_device(self, unit: Unit) -> None:
        """The device is gone for good: every call leaves, nothing starts again."""
        self._lost = True
        for row in unit.rows:
            self._end(row)
        for call in list(self._calls.values()):
            self._leave(call)
            self._drop.append(Drop(call, Reason.DEVICE))

    # rows and calls

    def _key(self, row: Row, state: ProgramState) -> Key:
        buckets = state.program.length_buckets
        return (state.program.id, row.stage, bisect_left(buckets, row.length) if buckets else 0)

    def _make_ready(self, row: Row, state: ProgramState) -> None:
        row.state = _WAITING
        state.waiting += 1
        self._ready.at(self._key(row, state)).add(row)

    def _end(self, row: Row) -> None:
        """The row holds nothing on the device any more."""
        row.state = _ENDED
        if row.started:
            row.started = False
            self._alive -= 1

    def _leave(self, call: Call) -> None:
        """The call is over: its waiting rows are forgotten, its running rows finish unheard."""
        call.alive = False
        del self._calls[call.id]
        state = self._programs[call.program]
        state.calls -= 1
        if call.left:
            for row in call.rows:
                if row.state is _WAITING:
                    self._end(row)
                    state.waiting -= 1
                    self._ready.at(self._key(row, state)).forget(1)
        self._forget_if_over(call.program, state)

    def _forget_if_over(self, program: int, state: ProgramState) -> None:
        if state.closed and not state.calls and program in self._programs:
            if any(unit.program == program for unit in self._units.values()):
                return
            del self._programs[program]
            self._ready.drop_program(program)
            for key in [key for key in self._caps if key[1] == program]:
                del self._caps[key]
