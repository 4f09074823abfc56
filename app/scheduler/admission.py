"""Admission control and backlog estimates.

A call is refused if its queue is full, or if its last row is predicted to end after the deadline, given the work that
is served before it. Each class has a queue of its own, bounded by `max_queue` and by how long its callers wait
(`Queue.takes`). Best-effort work is never why a real-time call is refused. How the backlog is counted:
docs/theory/order-and-share.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.scheduler.forming.multi_step import TURN_NS
from app.scheduler.policies import Policy
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level
from app.scheduler.types import DeviceSpec, Klass, Reason, Refusal
from app.scheduler.workers import Workers

_CLASSES = tuple(Klass)  # iterating over an enumeration is slow
_MIN_RETRY_NS = 1_000_000  # a hint of 0 would send the client straight back
#: How long a computed hint is reused. It is sent in whole seconds, and an overloaded server refuses thousands of calls
#: a second.
_HINT_NS = 1_000_000
_MOST_HINTS = 64  # (class, priority) pairs that keep a hint


class Admission:
    """Of one device."""

    def __init__(self, device: DeviceSpec, ledger: Ledger, workers: Workers, policies: Mapping[int, Policy]) -> None:
        self._running = device.max_running
        self._ledger = ledger
        self._workers = workers
        self._policies = policies

    def refusal(self, program: int, rows: int, level: Level, deadline: int | None, now: int) -> Refusal | None:
        """Why a call of so many rows at a level of (class, priority) is refused now, or None."""
        state = self._ledger.states.get(program)
        if state is None or state.closed:
            return Refusal(Reason.CLOSED, _MIN_RETRY_NS)
        if self._ledger.lost:
            return Refusal(Reason.DEVICE, _MIN_RETRY_NS)
        if not state.queue.takes(rows, level[0]):
            return Refusal(Reason.QUEUE_FULL, self._retry_ns(state, level, now))
        if deadline is not None:
            time = state.estimates.time(min(rows, state.program.max_batch))  # its own batch alone
            if self._policies[program].serves_in_order(state.estimates):
                time = max(time, self.backlog_ns(program, rows, level, now))
            if now + time > deadline:
                return Refusal(Reason.DEADLINE_UNREACHABLE, self._retry_ns(state, level, now))
        return None

    def backlog_ns(self, program: int, rows: int, level: Level, now: int) -> int:
        """Nanoseconds until the work before such a call and its own rows are done; 0 if no batch times are known.

        Of the cells of other programs only their turns count: one, and another for each turn that the rest takes.
        """
        behind = -1 if self._joins(program, rows) else program
        later = self._workers.after_turns_ns(now, *level, behind) if self._workers.multi_step else 0
        running = self._workers.remaining_ns(now, level[0]) - later
        total, in_turn = 0, []
        for state in self._ledger.states.values():
            for klass in _CLASSES[: level[0] + 1]:
                own = rows if state.program.id == program and klass is level[0] else None
                work = self._interval(state, klass, level, own)
                if work and self._takes_turns(state, program, klass, level):
                    in_turn.append(work)
                else:
                    total += work
        turns = total // self._running // TURN_NS
        total += running + min(later, turns * TURN_NS * self._running)
        return (total + sum(min(work, (1 + turns) * TURN_NS) for work in in_turn)) // self._running

    def _joins(self, program: int, rows: int) -> bool:
        """Whether a call would join its decoder's unit at the next step: then it waits for no text to end."""
        state = self._ledger.states.get(program)
        if state is None or not state.program.one_unit:
            return False
        before = state.queue.alive + sum(state.queue.waiting)
        return before + rows <= state.full[0] and rows <= self._ledger.room(state)

    def _takes_turns(self, state: ProgramState, program: int, klass: Klass, level: Level) -> bool:
        """Whether these rows, of cells, take turns with those of this program and level that wait."""
        ident, better = state.program.id, (level[0], level[1] - 1)
        cell = ident != program and klass is level[0] and any(stage.repeats for stage in state.program.stages)
        return cell and not self._ledger.ready.waiting_before(ident, klass, better)

    def _interval(self, state: ProgramState, klass: Klass, level: Level, own: int | None) -> int:
        """The part of `backlog_ns` for one program's rows of one class. `own`: rows of the call, if of these."""
        before = self._ledger.ready.waiting_before(state.program.id, klass, level)
        largest, interval = state.program.max_batch, state.estimates.interval
        full, rest = divmod(before + (own or 0), largest)
        if rest and own is not None:
            rest = min(largest, rest + state.queue.waiting[klass] - before)
        return full * interval(largest) + (interval(rest) if rest else 0)

    def _retry_ns(self, state: ProgramState, level: Level, now: int) -> int:
        """Nanoseconds until the work before such a call is done, computed once per `_HINT_NS` and level."""
        hints = state.queue.hints
        until, hint = hints.get(level, (0, 0))
        if now >= until:
            hint = max(_MIN_RETRY_NS, self.backlog_ns(state.program.id, 0, level, now))
            if len(hints) >= _MOST_HINTS:
                hints.clear()
            hints[level] = (now + _HINT_NS, hint)
        return hint
