"""At most `max_running` workers are busy, none holds more than its depth, and equals serve in turn."""

from __future__ import annotations

import pytest

from app.scheduler.workers import Workers

from .world import make_device


def test_only_those_at_work_may_hold_one_more_when_no_other_may_begin() -> None:
    workers = Workers(make_device(4, 4, 4, max_running=2, push_depth=2))
    assert workers.idle() == [0, 1, 2]
    workers.take(0)
    workers.take(2)
    assert workers.idle() == [0, 2]
    workers.take(0)
    assert workers.idle() == [2]
    assert not workers.full


@pytest.mark.parametrize(("taken", "full", "running"), [(0, False, 1), (1, False, 2), (2, True, 2)])
def test_full_and_running(taken: int, full: bool, running: int) -> None:
    workers = Workers(make_device(4, 4, 4, max_running=2))
    for worker in range(taken):
        workers.take(worker)
    assert (workers.busy, workers.full, workers.running) == (taken, full, running)
    assert (workers.idle() == []) == full


def test_free_is_what_may_begin() -> None:
    workers = Workers(make_device(4, 4, 4, max_running=2))
    assert workers.free(3) == 2
    workers.take(1)
    assert workers.free(2) == 1


def test_the_smallest_that_fits_then_the_least_to_do_then_idle_longest() -> None:
    workers = Workers(make_device(8, 2, 2, 2, push_depth=2))
    capacity = [8, 2, 2, 2]
    assert workers.choose([0, 1, 2, 3], 3, capacity) == 0
    workers.take(1)
    assert workers.choose([0, 1, 2, 3], 2, capacity) == 2
    for worker in (2, 3):
        workers.take(worker)
    for worker in (3, 1, 2):
        workers.give_back(worker)
    assert workers.choose([0, 1, 2, 3], 1, capacity) == 3
    assert workers.busy == 0
