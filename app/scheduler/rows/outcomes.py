"""Applies a finished unit: its rows continue, end, are run again in halves, or fail their calls."""

from __future__ import annotations

from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import Fault, Formed, Outcome, Reason, Row, Unit


def advance(ledger: Ledger, unit: Unit, outcome: Outcome, state: ProgramState) -> list[Row]:
    """A unit of a program with stages or a cell ran well. Rows move to their next stage or end; a call ends with its
    last row.

    Returns the rows with which the worker has already continued.
    """
    batches = state.batches
    assert batches is not None  # of a program of several stages, or a cell
    repeats = state.program.stages[unit.stage].repeats
    if repeats:
        state.estimates.row_steps += unit.size * outcome.steps
    passed = 0 if repeats else outcome.steps - 1  # further stages that the worker ran in the same unit
    last = unit.stage + passed + 1 == len(state.program.stages)
    ended = frozenset(outcome.ended)
    over: list[Row] = []
    ready: list[Row] = []
    staying: list[Row] = []
    for position, row in enumerate(unit.rows):
        call = row.call
        if outcome.continues and position not in ended:  # even if its call has left: the worker still has the row
            row.steps += outcome.steps
            ledger.stay(row)
            staying.append(row)
            continue
        row.stage += passed
        if not call.alive:
            over.append(row)
        elif repeats and position not in ended:
            row.steps += outcome.steps
            ready.append(row)
        elif not last:
            row.stage += 1
            row.steps = 0
            ready.append(row)
        else:
            if not repeats:
                batches.finish(row)
            over.append(row)
    ledger.end_rows(over, state)
    if ready:
        ledger.make_ready(ready, state)
    return staying


def fail(ledger: Ledger, unit: Unit, error: Fault, state: ProgramState) -> None:
    """The first stage or step of the unit failed: the model raised, or memory ran out. Halve the unit and run it again,
    or fail its calls.
    """
    rows = _alive(ledger, unit)
    if error is Fault.MODEL and (len(unit.rows) > 1 or unit.reason is Formed.RETRY):
        state.failures += 1
    if error is Fault.OOM and unit.size > 1:
        state.cap(unit.worker, max(1, unit.size // 2), unit.stage)
    elif error is Fault.MODEL and (state.broken or len(unit.rows) == 1):
        _fail_calls(ledger, rows, Reason.MODEL, alone=len(unit.rows) == 1)
        return
    elif error is Fault.OOM:
        _fail_calls(ledger, rows, Reason.OOM, alone=True)
        return
    middle = (len(rows) + 1) // 2
    for half in (rows[middle:], rows[:middle]):
        if half:
            ledger.retry(half, state)


def _alive(ledger: Ledger, unit: Unit) -> list[Row]:
    """The rows of a unit whose calls have not left. The other rows end."""
    for row in unit.rows:
        if not row.call.alive:
            ledger.end(row)
    return [row for row in unit.rows if row.call.alive]


def lose(ledger: Ledger, unit: Unit) -> None:
    """The device is lost, and this unit with it: every call leaves."""
    ledger.lost = True
    for row in unit.rows:
        ledger.end(row)
    for call in list(ledger.calls.values()):
        ledger.drop(call, Reason.DEVICE)


def _fail_calls(ledger: Ledger, rows: list[Row], reason: Reason, *, alone: bool) -> None:
    for row in rows:
        ledger.end(row)
        if row.call.alive:
            ledger.drop(row.call, reason, row.index if alone else -1)
