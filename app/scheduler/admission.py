"""Whether a call may come, and how long all that is there will take: predictions from batch times.

A deadline is judged by the batch that the call's rows will run in: the rows that wait are served in full batches, and
the last of them, with the newcomers, in one more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from app.scheduler.program import ProgramState
from app.scheduler.types import DeviceSpec, Reason, Refusal, Unit

_MIN_RETRY_NS = 1_000_000  # a hint of 0 would send the client straight back


def backlog_ns(
    states: Mapping[int, ProgramState], units: Iterable[Unit], device: DeviceSpec, now: int,
    program: int = -1, newcomers: int = 0,
) -> int:  # fmt: skip
    """Time until all that waits and runs now, and `newcomers` rows of `program`, are done; 0 where nothing is known."""
    total = 0
    for unit in units:
        total += max(0, unit.started + unit.predicted - now)
    for ident, state in states.items():
        waiting = state.waiting + newcomers if ident == program else state.waiting
        full, rest = divmod(waiting, state.program.max_batch)
        total += full * state.time(state.program.max_batch) + (state.time(rest) if rest else 0)
    return total // device.max_running


def refusal(
    states: Mapping[int, ProgramState], units: Iterable[Unit], device: DeviceSpec, now: int,
    program: int, n: int, deadline: int | None, lost: bool,
) -> Refusal | None:  # fmt: skip
    """Why a call of `n` rows may not come now, or None."""
    state = states.get(program)
    if state is None or state.closed:
        return Refusal(Reason.CLOSED, _MIN_RETRY_NS)
    if lost:
        return Refusal(Reason.DEVICE, _MIN_RETRY_NS)
    if state.waiting + n > state.program.max_queue:
        return Refusal(Reason.QUEUE_FULL, max(_MIN_RETRY_NS, backlog_ns(states, units, device, now)))
    if deadline is not None:
        alone = state.time(min(n, state.program.max_batch))  # however many units run, a batch runs in one of them
        if now + max(alone, backlog_ns(states, units, device, now, program, n)) > deadline:
            return Refusal(Reason.DEADLINE_UNREACHABLE, max(_MIN_RETRY_NS, backlog_ns(states, units, device, now)))
    return None
