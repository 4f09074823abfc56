"""How many rows may wait, learnt from callers who leave."""

from __future__ import annotations

from app.scheduler.patience import Patience
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Klass, Outcome

from .world import make_call, make_device, make_program

S = 1_000_000_000


def learnt(left: int, *, served: int = 160, waited_ns: int = 2 * S, waiting: int = 500) -> Patience:
    """After a window of one second."""
    patience = Patience(1024, 8, 0)
    for _ in range(left):
        patience.leave(1, waited_ns, waiting)
    patience.tick(S, served)
    return patience


def test_few_who_leave_teach_nothing() -> None:
    assert [learnt(left).bound for left in (0, 19, 20)] == [1024, 1024, 160]


def test_nor_do_callers_who_leave_a_short_queue_or_a_device_that_serves_nothing() -> None:
    assert learnt(200, waiting=16).bound == 1024
    assert learnt(200, served=0).bound == 1024


def test_two_of_the_largest_batches_may_always_wait() -> None:
    assert learnt(200, waited_ns=1).bound == 16
    assert Patience(4, 8, 0).bound == 4


def test_the_bound_grows_while_nobody_leaves() -> None:
    patience = learnt(200)
    for window in range(2, 100):
        before = patience.bound
        patience.tick(window * S, 0)
        assert before < patience.bound <= 1024 or before == patience.bound == 1024
    assert patience.bound == 1024


def test_calls_beyond_it_are_refused_and_large_ones_are_not() -> None:
    """A call of more rows than the bound comes in while fewer rows than that wait."""
    scheduler = Scheduler(make_device(1))
    scheduler.add_program(make_program(batch_ns=(S // 4,), max_batch=1, max_queue=8, policy="no_wait"), 0)
    for ident in range(8):
        scheduler.submit(make_call(ident), 0)
    (unit,) = scheduler.step(0).start
    for turn in range(1, 4):
        scheduler.finished(Outcome(unit.id, None, S // 4), turn * S // 4)
        (unit,) = scheduler.step(turn * S // 4).start
    for ident in (7, 6):
        scheduler.cancel(ident, S)
    scheduler.tick(S)
    assert scheduler.waiting(1) == scheduler.states[1].patience[Klass.REALTIME].bound == 2
    assert scheduler.admit(1, 1, Klass.REALTIME, None, S) is not None
    assert not scheduler.has_room(1, 1)
    assert scheduler.admit(1, 1, Klass.BEST_EFFORT, None, S) is None
    scheduler.cancel(5, S)
    assert scheduler.admit(1, 5, Klass.REALTIME, None, S) is None
    assert scheduler.has_room(1, 5)
