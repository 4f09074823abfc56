"""Between keys: class, then priority, then the oldest head; keys held back are passed over."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from app.scheduler.forming.arbiter import Arbiter
from app.scheduler.rows.ready import ReadySet, ReadyTable
from app.scheduler.types import Call, Klass

from .test_ready import leave, stand
from .world import make_call

BEST = Klass.BEST_EFFORT


def first(sets: list[ReadySet], held: Collection[ReadySet] = ()) -> ReadySet | None:
    """The choice among these sets, in this order."""
    table = ReadyTable()
    table._sets = {(ready.key, ready.klass): ready for ready in sets}
    return Arbiter(table).first(held)


def ready_set(program: int, *calls: Call) -> ReadySet:
    ready = ReadySet((program, 0, 0))
    stand(ready, *calls)
    return ready


@pytest.mark.parametrize(
    ("one", "two"),
    [
        pytest.param(make_call(1, klass=BEST, priority=0, arrived=0), make_call(2, priority=9, arrived=9), id="class"),
        pytest.param(make_call(1, priority=2, arrived=0), make_call(2, priority=1, arrived=9), id="priority"),
        pytest.param(make_call(1, arrived=5), make_call(2, arrived=4), id="oldest-head"),
    ],
)
def test_second_goes_first(one: Call, two: Call) -> None:
    sets = [ready_set(1, one), ready_set(2, two)]
    assert first(sets) is sets[1]
    assert first(sets[::-1]) is sets[1]


def test_equal_arrivals_go_by_submission() -> None:
    sets = [ready_set(2, make_call(2)), ready_set(1, make_call(1))]
    assert first(sets) is sets[1]


def test_held_keys_are_passed_over() -> None:
    sets = [ready_set(1, make_call(1, arrived=1)), ready_set(2, make_call(2, arrived=2))]
    assert first(sets, [sets[0]]) is sets[1]
    assert first(sets, sets) is None


def test_heads_that_left_do_not_count() -> None:
    gone = make_call(1, arrived=1)
    sets = [ready_set(1, gone, make_call(3, arrived=3)), ready_set(2, make_call(2, arrived=2))]
    leave(sets[0], gone)
    assert first(sets) is sets[1]


def test_nothing_waits() -> None:
    assert first([ReadySet((1, 0, 0))]) is None
    assert first([]) is None


def test_retry_group_speaks_for_its_key() -> None:
    sets = [ready_set(1, make_call(1, arrived=1)), ready_set(2, make_call(2, arrived=2))]
    sets[0].add_retry(sets[0].take(1, 1 << 30))
    assert first(sets) is sets[0]
