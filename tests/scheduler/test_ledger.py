"""A call leaves once, with the rows of it that wait; a closed program is forgotten with its last call and unit."""

from __future__ import annotations

import pytest

from app.scheduler.ledger import Ledger, key_of
from app.scheduler.program import ProgramState
from app.scheduler.types import Reason, Row, RowState

from .world import make_call, make_device, make_program


def ledger_of(**options: object) -> tuple[Ledger, ProgramState]:
    ledger = Ledger()
    state = ledger.states[1] = ProgramState(make_program(**options), None, make_device(8), 0)
    return ledger, state


def take(ledger: Ledger, state: ProgramState, n: int) -> list[Row]:
    rows = ledger.ready.at((1, 0, 0)).take(n, 100)
    ledger.start(rows, state)
    return rows


def test_rows_of_a_call_wait_in_order_of_submission() -> None:
    ledger, state = ledger_of()
    for ident in (1, 2):
        ledger.enter(make_call(ident, 2), state)
    assert (state.waiting, state.calls, ledger.alive) == (4, 2, 0)
    assert [(row.call.id, row.index) for row in take(ledger, state, 4)] == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert (state.waiting, state.units, ledger.alive) == (0, 1, 4)


def test_a_row_is_alive_from_its_first_start_to_its_end() -> None:
    ledger, state = ledger_of()
    ledger.enter(make_call(1), state)
    (row,) = take(ledger, state, 1)
    ledger.make_ready(row, state)
    assert (ledger.alive, state.waiting, row.state) == (1, 1, RowState.WAITING)
    take(ledger, state, 1)
    ledger.end(row)
    ledger.end(row)
    assert (ledger.alive, row.state) == (0, RowState.ENDED)


def test_leaving_forgets_the_rows_that_wait_and_not_those_that_run() -> None:
    ledger, state = ledger_of()
    call = make_call(1, 3)
    ledger.enter(call, state)
    (running,) = take(ledger, state, 1)
    ledger.drop(call, Reason.DEADLINE)
    assert not call.alive
    assert (state.waiting, ledger.alive, running.state) == (0, 1, RowState.RUNNING)
    assert [(drop.call, drop.reason, drop.row) for drop in ledger.drops] == [(call, Reason.DEADLINE, -1)]
    assert ledger.done == []


@pytest.mark.parametrize("last", ["call", "unit"])
def test_a_closed_program_is_forgotten_with_its_last_call_and_unit(last: str) -> None:
    ledger, state = ledger_of()
    call = make_call(1)
    ledger.enter(call, state)
    take(ledger, state, 1)
    state.closed = True
    if last == "call":
        state.units -= 1
        ledger.forget_if_over(state)
        assert ledger.states
        ledger.leave(call)
    else:
        ledger.leave(call)
        assert ledger.states
        state.units -= 1
        ledger.forget_if_over(state)
    assert not ledger.states
    assert not ledger.ready._sets


def test_the_key_holds_the_length_bucket() -> None:
    _, state = ledger_of(length_buckets=(4, 8))
    assert [key_of(Row(0, length), state) for length in (1, 4, 5, 9)] == [(1, 0, 0), (1, 0, 0), (1, 0, 1), (1, 0, 2)]
