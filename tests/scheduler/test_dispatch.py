"""Units are formed for workers in turn."""

from __future__ import annotations

from itertools import count

import pytest

from app.scheduler.estimates.profile import Profile
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, Forecast, Formed, Reason, Stage, Unit
from app.scheduler.workers import Workers

from .driven import calls_of, feed, scheduler_of
from .world import make_call, make_device, make_program

# A unit is handed over behind another one just before that ends; predictions know when it will begin.


class TestCallsThatLeaveInTheStepThatStartsThem:
    """Two rows would be in time, on a worker each, and the third behind one of them would not."""

    def scheduler(self) -> Scheduler:
        device = make_device(1, 1, push_depth=2, push_ahead_ns=AT_ONCE)
        scheduler = scheduler_of(make_program(batch_ns=(10,), policy="no_wait", max_batch=1), device=device)
        scheduler.submit(make_call(1, 3, deadline=15), 0)
        return scheduler

    def test_none_of_their_rows_starts_and_others_take_the_workers(self) -> None:
        scheduler = self.scheduler()
        scheduler.submit(make_call(2, 2), 0)
        step = scheduler.step(0)
        assert [drop.reason for drop in step.drop] == [Reason.DEADLINE_UNREACHABLE]
        assert [calls_of(unit) for unit in step.start] == [[2], [2]]
        assert sorted(unit.worker for unit in step.start) == [0, 1]
        assert (scheduler._ledger.alive, sum(scheduler.states[1].queue.waiting)) == (2, 0)

    def test_a_closed_program_is_forgotten_with_them(self) -> None:
        scheduler = self.scheduler()
        scheduler.remove_program(1, 0)
        step = scheduler.step(0)
        assert (step.start, len(step.drop)) == ([], 1)
        assert 1 not in scheduler.states
        assert scheduler._ledger.alive == 0


def test_a_hold_ends_early_enough_for_a_hand_over() -> None:
    """By a quarter more than it takes, as for all that is predicted."""
    times = []
    for handover_ns in (None, 400_000):
        stages = (Stage(Profile((10**6,) * 4, handover_ns=handover_ns)),)
        program = make_program(stages=stages, policy="window", max_delay_ns=10**9)
        times.append(feed(scheduler_of(program), make_call(1, deadline=10**8)).wake_at)
    assert times[0] - times[1] == 500_000


# At most `max_running` workers are busy, none holds more than its depth, and a second unit comes just in time.


_NUMBERS = count()


def unit(worker: int, predicted: int = 100) -> Unit:
    return Unit(next(_NUMBERS), worker, 1, 0, [], 1, Formed.IDLE, 0, Forecast(predicted))


def take(workers: Workers, worker: int, now: int = 0, predicted: int = 100) -> Unit:
    made = unit(worker, predicted)
    made.forecast.begins = workers.begins(worker, now)
    workers.take(made)
    return made


def test_a_pushed_unit_begins_when_the_one_before_it_ends() -> None:
    workers = Workers(make_device(4, push_depth=3, push_ahead_ns=AT_ONCE))
    first, second, third = (take(workers, 0, now=1000, predicted=ns) for ns in (100, 50, 10))
    assert [one.forecast.begins for one in (first, second, third)] == [1000, 1100, 1150]
    assert workers.remaining_ns(1040) == 60 + 50 + 10
    workers.give_back(first.id, 1080)  # sooner than predicted
    assert [one.forecast.begins for one in (second, third)] == [1080, 1130]
    assert workers.begins(0, 1090) == 1140
    assert workers.remaining_ns(1200) == 0 + 10  # the second is late; the third has not begun


def test_the_smallest_that_fits_then_the_least_to_do_then_idle_longest() -> None:
    workers = Workers(make_device(8, 2, 2, 2, push_depth=2, push_ahead_ns=AT_ONCE))
    capacity = [8, 2, 2, 2]
    assert workers.place([0, 1, 2, 3], 3, capacity, 0)[0] == 0
    held = {1: take(workers, 1)}
    assert workers.place([1, 2, 3], 2, capacity, 0)[0] == 2
    for worker in (2, 3):
        held[worker] = take(workers, worker, predicted=100 + worker)
    assert workers.place([1, 2, 3], 2, capacity, 0)[:2] == (1, 100)  # it ends first
    for worker in (3, 1, 2):
        workers.give_back(held[worker].id, 0)
    assert workers.place([0, 1, 2, 3], 1, capacity, 0)[0] == 3
    assert workers.busy == 0


def test_a_unit_that_ends_says_how_many_ran_beside_it() -> None:
    workers = Workers(make_device(4, 4, 4))
    first, second, third = unit(0), unit(1), unit(2)
    second.started, third.started = 40, 80
    for one in (first, second, third):
        workers.take(one)
    for one, now in ((first, 100), (second, 140), (third, 200)):
        workers.give_back(one.id, now)
    assert [one.forecast.others for one in (first, second, third)] == pytest.approx(
        [(60 + 20) / 100, (60 + 60) / 100, (20 + 60) / 120]
    )


def test_a_busy_worker_opens_shortly_before_its_predicted_end() -> None:
    workers = Workers(make_device(4, push_depth=2, push_ahead_ns=30))
    take(workers, 0, now=1000)
    assert (workers.usable(1069), workers.next_opening(1069)) == ([], 1070)
    assert (workers.usable(1070), workers.next_opening(1070)) == ([0], None)
    second = take(workers, 0, now=1075)
    assert second.forecast.begins == 1100
    assert (workers.usable(1099), workers.next_opening(1099)) == ([], None)  # its depth is reached
