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
    unit or holds the key back until a time. Of the rows cut, those that are predicted to end after their deadline leave
    instead, and others take their places: in overload a device that finishes late work does nothing else. A finished
    unit moves its rows to their next stage, or its calls to `done`.

Failure
    A unit that fails with several rows is split in halves that return to the head of their key, until the culprit is
    alone and fails its call only. When most of a program's recent units failed, the program is broken, not a row, and
    units fail whole. Out of memory halves too, and caps that worker for that program from then on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.scheduler import admission, arbiter, outcomes
from app.scheduler.ledger import Ledger
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import Cut, Hold, KeyView
from app.scheduler.program import ProgramState
from app.scheduler.ready import Key, ReadySet
from app.scheduler.types import (
    Call,
    DeviceSpec,
    Drop,
    Fault,
    Klass,
    Outcome,
    Profile,
    Program,
    Reason,
    Refusal,
    Row,
    Step,
    Unit,
)
from app.scheduler.workers import Workers

_NEVER = 1 << 62
_LATE_TIMER_NS = 2_000_000  # event loops wake up to a millisecond late; a hold must not end too late for a deadline


class Scheduler:
    """One device's scheduler. See the module's text for its rules."""

    def __init__(self, device: DeviceSpec, *, split_failed: bool = True) -> None:
        if not device.workers:
            raise ValueError("workers: expected at least one")
        self.device = device
        self.split_failed = split_failed
        self._ledger = Ledger()
        self._states = self._ledger.states
        self._units: dict[int, Unit] = {}
        self._workers = Workers(device)
        self._next_unit = 0
        self._lost = False

    # inputs

    def add_program(self, program: Program, now: int) -> None:
        """Open a program to calls. Raises ValueError for a policy that is unknown or that this device cannot serve."""
        self._check_policy(program)
        entry = None if program.length_buckets else self._ledger.ready.at((program.id, 0, 0))
        self._states[program.id] = ProgramState(program, entry, self.device, now)

    def _check_policy(self, program: Program) -> None:
        others = {state.program.policy for state in self._states.values()} - {program.policy}
        if others and "ebird" in others | {program.policy}:
            raise ValueError(f"policy: ebird shares a device with no other policy, here {', '.join(sorted(others))}")
        capacities = [worker.capacity for worker in self.device.workers]
        if program.policy != "ebird":
            return
        if 1 not in capacities:
            raise ValueError(f"workers: expected one of capacity 1 for the policy ebird, got {capacities}")
        if self.device.push_depth > 1:  # its workers are idle or not; behind a unit at work there is no second place
            raise ValueError(f"push_depth: expected 1 for the policy ebird, got {self.device.push_depth}")

    def remove_program(self, program: int, now: int) -> None:
        """Close a program to new calls; it is forgotten when its last call has left."""
        state = self._states[program]
        state.closed = True
        self._ledger.forget_if_over(state)

    def admit(self, program: int, n: int, klass: Klass, deadline: int | None, now: int) -> Refusal | None:
        """Whether a call of `n` rows may come now. Changes nothing."""
        state = self._states.get(program)
        if state is not None and deadline is None and not (state.closed or self._lost):  # most calls, at little cost
            over = state.waiting + n > state.program.max_queue
            if not over:
                return None
        return admission.refusal(self._states, self._units.values(), self.device, now, program, n, deadline, self._lost)

    def refused(self, program: int, n: int, now: int) -> None:
        """A call of `n` rows came and was refused, for a full queue or its deadline: it is part of the arrival rate.

        Without it, what is served would set the rate, and a policy that goes by the rate would serve no more.
        """
        state = self._states.get(program)
        if state is not None:
            state.rate.arrive(n)

    def submit(self, call: Call, now: int) -> None:
        """A call enters: all its rows stand in the ready table. The caller has asked `admit`.

        If the device or the program has gone since then, the call leaves with the next Step.
        """
        state = self._states.get(call.program)
        if self._lost or state is None:
            call.alive = False
            self._ledger.drops.append(Drop(call, Reason.DEVICE if self._lost else Reason.CLOSED))
        else:
            self._ledger.enter(call, state)

    def cancel(self, call_id: int, now: int) -> None:
        """The caller has gone: rows that wait are forgotten, rows that run finish unheard. Unknown ids are ignored."""
        call = self._ledger.calls.get(call_id)
        if call is not None:
            self._ledger.leave(call)

    def launched(self, unit_id: int, now: int) -> None:
        """The unit is on the device's stream. Nothing depends on it while units run one at a time per worker."""

    def finished(self, outcome: Outcome, now: int) -> None:
        """A unit has ended, well or not. Outcomes of unknown units (a device lost earlier) are ignored."""
        unit = self._units.pop(outcome.unit_id, None)
        if unit is None:
            return
        self._workers.give_back(unit.worker)
        state = self._states[unit.program]
        state.units -= 1
        if unit.first_run:
            state.recent.append(outcome.error is Fault.MODEL)
        if outcome.error is None:
            state.observe(unit.stage, unit.size * unit.steps, outcome.compute_ns, unit.running)
            outcomes.advance(self._ledger, unit, outcome, state)
        elif outcome.error is Fault.DEVICE:
            self._lost = True  # nothing starts again
            outcomes.lose(self._ledger, unit)
        else:
            outcomes.fail(self._ledger, unit, outcome.error, state, self.split_failed)
        self._ledger.forget_if_over(state)

    def tick(self, now: int) -> None:
        """The rate monitor's window has closed."""
        for state in self._states.values():
            state.tick(now)

    def reprofile(self, program: int, profile: Profile, now: int) -> None:
        """A program's first stage has been measured anew. Unknown programs are ignored: one may have gone meanwhile."""
        state = self._states.get(program)
        if state is not None:
            state.reprofile(profile)

    def control(self, program: int, tables: ControlTables | None, now: int) -> None:
        """Control tables for the policy `adaptive`, solved by the driver; None takes them away."""
        state = self._states.get(program)
        if state is not None:
            state.set_control(tables)

    # the one output

    def step(self, now: int) -> Step:
        """What to do now, given all inputs so far."""
        ledger = self._ledger
        start: list[Unit] = []
        if not ledger.deadlines:
            wake_at = self._dispatch(start, now)
        else:
            for call in ledger.deadlines.passed(now):
                ledger.drop(call, Reason.DEADLINE)
            wake_at = self._dispatch(start, now)
            deadline = ledger.deadlines.next()
            if wake_at is None or (deadline is not None and deadline < wake_at):
                wake_at = deadline
        done, drops = ledger.done, ledger.drops
        if done or drops:
            ledger.done, ledger.drops = [], []
        return Step(start, done, drops, wake_at)

    # what others may read

    @property
    def alive(self) -> int:
        """Rows that have started and not ended."""
        return self._ledger.alive

    @property
    def calls(self) -> Iterable[Call]:
        """Calls that have not left, in order of submission."""
        return self._ledger.calls.values()

    @property
    def running(self) -> Iterable[Unit]:
        """Units handed out and not finished, oldest first."""
        return self._units.values()

    def waiting(self, program: int) -> int:
        """Rows of a program in the ready table."""
        state = self._states.get(program)
        return state.waiting if state else 0

    def rate(self, program: int) -> float:
        """Rows per second that came over the last closed window, those refused included."""
        state = self._states.get(program)
        return state.rate.rate if state else 0.0

    def preferred(self, program: int) -> int:
        """The preferred batch size at that rate."""
        state = self._states.get(program)
        return state.preferred if state else 0

    def regression(self, program: int) -> tuple[float, float, float]:
        """Batch time as alpha + beta x rows: alpha, beta and the residual in ns, first stage."""
        state = self._states.get(program)
        return (state.regression.alpha, state.regression.beta, state.regression.residual) if state else (0.0, 0.0, 0.0)

    def scale(self, program: int) -> float:
        """Observed over profiled batch time, first stage."""
        state = self._states.get(program)
        return state.latency[0].scale if state else 1.0

    def backlog_ns(self, now: int) -> int:
        """Time until all that waits and runs now would be done, from measured batch times; 0 where none are known."""
        return admission.backlog_ns(self._states, self._units.values(), self.device, now)

    # forming units

    def _dispatch(self, start: list[Unit], now: int) -> int | None:
        """Start what can start; return the earliest time at which a held key wants to be asked again."""
        if self._workers.full:
            return None  # the step that most calls get
        held: list[Key] = []
        wake_at: int | None = None
        while not self._lost:
            idle = self._workers.idle()
            if not idle:
                break
            ready = arbiter.first(self._ledger.ready.waiting(), held)
            if ready is None:
                break
            alive = self._ledger.alive
            hold = self._serve(ready, idle, start, now)
            if self._ledger.alive < alive:  # late calls have left room, for which keys held so far may have waited
                held.clear()
            if hold is not None:
                held.append(ready.key)
                if hold.until is not None and (wake_at is None or hold.until < wake_at):
                    wake_at = hold.until
        return wake_at

    def _serve(self, ready: ReadySet, idle: Sequence[int], start: list[Unit], now: int) -> Hold | None:
        """Start one unit of this key, or say until when the key is held back."""
        program, stage, _ = ready.key
        state = self._states[program]
        # Rows that start take up room on the device; those that go on, in a cell or at a later stage, have theirs.
        room = self.device.max_alive - self._ledger.alive
        going = ready.going() if stage or state.program.stages[0].repeats else 0
        capacities = sorted((state.capacity[worker] for worker in idle), reverse=True)
        limit = min(capacities[0], room + going)
        if limit < 1:
            return Hold(None)
        group = ready.retry() if room or stage else None
        if group is not None:
            most = limit if stage else min(limit, room)
            if len(group) > most:  # the cap has fallen since: what fits goes, the rest stays first in line
                ready.add_retry(group[most:])
                group = group[:most]
            self._start(ready.key, group, Cut(len(group), len(group), "retry"), idle, start, now)
            return None
        decision = state.policy.decide(self._view(ready, state, limit, room + going, len(idle)), capacities, now)
        if isinstance(decision, Hold):
            return decision
        if self._ledger.deadlines and self._drop_late(ready, state, decision, now):
            return None  # fewer rows wait now, so all is asked again
        self._start(ready.key, ready.take(decision.rows, room), decision, idle, start, now)
        return None

    def _view(self, ready: ReadySet, state: ProgramState, limit: int, room: int, idle: int) -> KeyView:
        facts = state.facts[ready.key[1]]
        waiting = ready.free_count
        due = self._due(ready, state, min(waiting, limit)) if facts.may_hold and self._ledger.deadlines else _NEVER
        return KeyView(
            waiting, limit, state.full, ready.oldest(), state.program.max_delay_ns, room, due,
            self._workers.free(idle), self._workers.running, facts,
        )  # fmt: skip

    def _due(self, ready: ReadySet, state: ProgramState, rows: int) -> int:
        """When a unit of the first `rows` must start, so that none of them ends after its deadline."""
        first = ready.first(rows, self.device.max_alive - self._ledger.alive)
        deadlines = [row.call.deadline for row in first if row.call.deadline is not None]
        if not deadlines:
            return _NEVER
        time = state.time(rows, ready.key[1], self._workers.running)
        return min(deadlines) - time - time // 4 - _LATE_TIMER_NS

    def _drop_late(self, ready: ReadySet, state: ProgramState, cut: Cut, now: int) -> bool:
        """Let the calls leave of which a row would run in this unit and end after its deadline; True if there were."""
        ends = now + state.time(cut.size, ready.key[1], self._workers.running)
        rows = ready.first(cut.rows, self.device.max_alive - self._ledger.alive)
        late = {call.id: call for row in rows if (call := row.call).deadline and call.deadline < ends}
        for call in late.values():
            self._ledger.drop(call, Reason.DEADLINE_UNREACHABLE)
        return bool(late)

    def _start(self, key: Key, rows: list[Row], cut: Cut, idle: Sequence[int], start: list[Unit], now: int) -> None:
        """Hand the rows to a worker as one unit."""
        program, stage, _ = key
        state = self._states[program]
        size = max(cut.size, len(rows))
        worker = self._workers.choose(idle, size, state.capacity)
        self._ledger.start(rows, state)
        running = self._workers.running
        self._workers.take(worker)
        unit = Unit(
            self._next_unit, worker, program, stage, rows, size, cut.reason, now,
            state.latency[stage].predict(size, running), running, cut.reason != "retry",
        )  # fmt: skip
        self._next_unit += 1
        self._units[unit.id] = unit
        start.append(unit)
