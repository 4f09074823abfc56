"""Admission control and backlog estimates.

A call is refused if its last row is predicted to end after the deadline. The prediction counts the work served before
the call: running units, and rows that wait with the same or a better class and priority. These rows are assumed to run
in full batches; the remainder shares one more batch with the call's rows, which later rows may fill up. Under a policy
that picks rows by deadline and length, waiting rows do not predict when a call ends, so only its own batch counts.

Each class has a queue of its own, bounded by `max_queue` and by how long its callers wait (`patience`). Best-effort
work, even if it runs, is ignored for real-time calls: it is never why one is refused.
"""

from __future__ import annotations

from typing import NamedTuple

from app.scheduler.forming.workers import Workers
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.rows.ready import Level
from app.scheduler.types import DeviceSpec, Klass, Reason, Refusal

_CLASSES = tuple(Klass)  # iterating over an enumeration is slow
_MIN_RETRY_NS = 1_000_000  # a hint of 0 would send the client straight back
#: How long a computed hint is reused. It is sent in whole seconds, and an overloaded server refuses thousands of calls
#: a second.
_HINT_NS = 1_000_000
_MOST_HINTS = 64  # (class, priority) pairs that keep a hint


class AdmissionRequest(NamedTuple):
    """A call that asks to be admitted: `rows` of `program`, at a `level` of (class, priority)."""

    program: int
    rows: int
    level: Level
    deadline: int | None

    @property
    def klass(self) -> int:
        return self.level[0]


def backlog_ns(ledger: Ledger, workers: Workers, device: DeviceSpec, now: int, request: AdmissionRequest) -> int:
    """Nanoseconds until the work before `request` and its own rows are done; 0 if no batch times are known."""
    total = workers.remaining_ns(now, request.klass)
    for state in ledger.states.values():
        for klass in _CLASSES:
            if klass <= request.klass:
                total += _interval(ledger, state, klass, request)
    return total // device.max_running


def _interval(ledger: Ledger, state: ProgramState, klass: Klass, request: AdmissionRequest) -> int:
    """The part of `backlog_ns` for one program's rows of one class."""
    before = ledger.ready.waiting_before(state.program.id, klass, request.level)
    own = state.program.id == request.program and klass == request.klass
    largest = state.program.max_batch
    full, rest = divmod(before + request.rows if own else before, largest)
    if rest and own:
        rest = min(largest, rest + state.waiting_of(klass) - before)
    return full * state.interval(largest) + (state.interval(rest) if rest else 0)


def refusal(
    request: AdmissionRequest, ledger: Ledger, workers: Workers, device: DeviceSpec, now: int, *, lost: bool
) -> Refusal | None:
    """Why a call is refused now, or None."""
    state = ledger.states.get(request.program)
    if state is None or state.closed:
        return Refusal(Reason.CLOSED, _MIN_RETRY_NS)
    if lost:
        return Refusal(Reason.DEVICE, _MIN_RETRY_NS)
    waiting = state.best_effort if request.level[0] else state.waiting - state.best_effort
    if waiting + request.rows > state.program.max_queue or waiting >= state.patience[request.klass].bound:
        return Refusal(Reason.QUEUE_FULL, _retry_ns(request, ledger, workers, device, now))
    if request.deadline is not None:
        time = state.time(min(request.rows, state.program.max_batch))  # its own batch alone
        if not (state.policy.sees_deadlines and state.facts.lengths):
            time = max(time, backlog_ns(ledger, workers, device, now, request))
        if now + time > request.deadline:
            return Refusal(Reason.DEADLINE_UNREACHABLE, _retry_ns(request, ledger, workers, device, now))
    return None


def _retry_ns(request: AdmissionRequest, ledger: Ledger, workers: Workers, device: DeviceSpec, now: int) -> int:
    """Nanoseconds until the work before such a call is done, computed once per `_HINT_NS` and level."""
    hints = ledger.states[request.program].hints
    until, hint = hints.get(request.level, (0, 0))
    if now >= until:
        before = AdmissionRequest(request.program, 0, request.level, None)
        hint = max(_MIN_RETRY_NS, backlog_ns(ledger, workers, device, now, before))
        if len(hints) >= _MOST_HINTS:
            hints.clear()
        hints[request.level] = (now + _HINT_NS, hint)
    return hint
