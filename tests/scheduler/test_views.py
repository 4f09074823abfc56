"""What a policy sees of a key: what there is room for, and when rows are due."""

from __future__ import annotations

from app.scheduler.forming.views import Views, longest_of
from app.scheduler.forming.workers import Workers
from app.scheduler.rows.ledger import Ledger
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import DeviceSpec, Klass, WorkerSpec

from .world import make_call, make_program

DEVICE = DeviceSpec((WorkerSpec(4), WorkerSpec(8)), max_running=2, max_alive=6)


def made(**options: object) -> tuple[Views, Ledger, ProgramState]:
    ledger = Ledger()
    state = ProgramState(make_program(batch_ns=(100,) * 8, max_batch=8, **options), None, DEVICE, 0)
    ledger.states[1] = state
    return Views(DEVICE, ledger, Workers(DEVICE)), ledger, state


def test_room_is_the_least_of_the_device_and_the_program() -> None:
    views, ledger, state = made(max_alive=5)
    assert views.room(state) == 5
    ledger.alive = 4
    assert views.room(state) == 2
    state.alive = 4
    assert views.room(state) == 1


def test_a_view_counts_what_waits_and_what_may_start() -> None:
    views, ledger, state = made(max_delay_ns=70)
    ledger.enter(make_call(1, 3, arrived=5), state)
    ledger.enter(make_call(2, 2, arrived=9), state)
    view = views.of(ledger.ready.at((1, 0, 0), Klass.REALTIME), state, [0, 1], 4, 6, 9)
    assert (view.ready, view.limit, view.full, view.oldest, view.max_delay) == (5, 4, 6, 5, 70)
    assert (view.room, view.free, view.running) == (6, 2, 1)
    assert view.neighbours is None
    assert view.length_window is None


def test_the_longest_of_no_rows_is_0() -> None:
    assert longest_of(make_call(1, lengths=(3, 9, 4)).rows) == 9
    assert longest_of([]) == 0
