from __future__ import annotations

from app.scheduler.rows.ledger import Deadlines
from app.scheduler.types import Call, Klass


def calls(**deadlines: int) -> dict[int, Call]:
    return {int(n[1:]): Call(int(n[1:]), 0, [], Klass.REALTIME, 2, 0, at) for n, at in deadlines.items()}


def test_the_earliest_goes_first_and_none_before_its_time() -> None:
    living = calls(_1=30, _2=10, _3=20)
    deadlines = Deadlines(living)
    for deadline, call in ((30, 1), (10, 2), (20, 3)):
        deadlines.add(deadline, call)
    assert deadlines.next() == 10
    assert [call.id for call in deadlines.passed(9)] == []
    assert [call.id for call in deadlines.passed(20)] == [2, 3]
    assert deadlines.next() == 30


def test_calls_that_left_are_passed_over() -> None:
    living = calls(_1=10, _2=20)
    deadlines = Deadlines(living)
    deadlines.add(10, 1)
    deadlines.add(20, 2)
    del living[1]
    assert deadlines.next() == 20
    assert [call.id for call in deadlines.passed(50)] == [2]
    assert deadlines.next() is None


def test_a_deadline_that_was_put_off_counts_as_it_is_now() -> None:
    living = calls(_1=10, _2=15)
    deadlines = Deadlines(living)
    deadlines.add(10, 1)
    deadlines.add(15, 2)
    living[1].deadline, living[2].deadline = 30, None
    deadlines.add(30, 1)
    assert [call.id for call in deadlines.passed(20)] == []
    assert deadlines.next() == 30
    assert [call.id for call in deadlines.passed(30)] == [1]
    assert deadlines.next() is None


def test_the_heap_is_bounded_by_the_living() -> None:
    """Deadlines far ahead of calls long answered must not gather."""
    living = calls()
    deadlines = Deadlines(living)
    for n in range(10_000):
        deadlines.add(1_000_000 + n, n)
    assert len(deadlines.heap) <= 66
