"""A unit is handed over behind another one just before that ends; predictions know when it will begin."""

from __future__ import annotations

import pytest

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, Formed

from .test_scheduler import calls_of, feed, finish
from .world import make_call, make_device, make_program

CURVE = (100, 110, 120, 130)
AHEAD = 30


def scheduler_of(ahead: int = AHEAD, policy: str = "no_wait", **options: int) -> Scheduler:
    scheduler = Scheduler(make_device(4, push_depth=2, push_ahead_ns=ahead))
    scheduler.add_program(make_program(batch_ns=CURVE, policy=policy, **options), 0)
    return scheduler


class TestPushAhead:
    def test_the_second_unit_is_cut_when_the_first_is_about_to_end(self) -> None:
        """So it takes the rows that came meanwhile."""
        scheduler = scheduler_of()
        feed(scheduler, make_call(1))
        step = feed(scheduler, make_call(2), now=10)
        assert (step.start, step.wake_at) == ([], 100 - AHEAD)
        assert feed(scheduler, make_call(3), now=69).start == []
        (unit,) = scheduler.step(70).start
        assert calls_of(unit) == [2, 3]
        assert (unit.started, unit.begins, unit.predicted) == (70, 100, 110)

    def test_at_once_it_is_cut_from_what_is_there(self) -> None:
        scheduler = scheduler_of(ahead=AT_ONCE)
        feed(scheduler, make_call(1))
        (unit,) = feed(scheduler, make_call(2), now=10).start
        assert (calls_of(unit), unit.begins) == ([2], 100)

    def test_nobody_is_woken_when_nothing_waits(self) -> None:
        scheduler = scheduler_of()
        assert feed(scheduler, make_call(1)).wake_at is None

    def test_a_unit_that_ends_early_opens_its_worker(self) -> None:
        scheduler = scheduler_of()
        unit = feed(scheduler, make_call(1)).start[0]
        feed(scheduler, make_call(2), now=10)
        assert [calls_of(one) for one in finish(scheduler, unit, 20).start] == [[2]]

    def test_without_time_ahead_the_worker_gets_it_at_the_predicted_end(self) -> None:
        scheduler = scheduler_of(ahead=0)
        feed(scheduler, make_call(1))
        assert feed(scheduler, make_call(2), now=10).wake_at == 100
        assert [calls_of(unit) for unit in scheduler.step(100).start] == [[2]]


class TestDeadlines:
    @pytest.mark.parametrize(("deadline", "kept"), [(209, False), (210, True)])
    def test_a_pushed_unit_ends_after_the_one_before_it(self, deadline: int, kept: bool) -> None:
        """Pushed at 75, it begins at 100 and takes 110, two rows long."""
        scheduler = scheduler_of()
        feed(scheduler, make_call(1))
        feed(scheduler, make_call(2), make_call(3, deadline=deadline), now=75)
        assert [calls_of(unit) for unit in scheduler.running][1:] == ([[2, 3]] if kept else [[2]])
        assert (3 in {call.id for call in scheduler.calls}) == kept

    def test_a_hold_ends_in_time_for_a_unit_that_must_wait_for_its_worker(self) -> None:
        """Beside the time to compute, and what a late timer costs, the row waits for the unit before it to end."""
        times: dict[int, int] = {}
        for running in (False, True):
            scheduler = Scheduler(make_device(4, push_depth=2, push_ahead_ns=AT_ONCE))
            scheduler.add_program(make_program(batch_ns=(10**6,) * 4, policy="window", max_delay_ns=10**9), 0)
            if running:
                feed(scheduler, make_call(1, 4))
            wake_at = feed(scheduler, make_call(2, deadline=10**8), now=0).wake_at
            assert wake_at is not None
            times[running] = wake_at
        assert times[False] - times[True] == 10**6


def test_reasons_say_why_a_unit_was_formed() -> None:
    scheduler = scheduler_of(ahead=AT_ONCE)
    step = feed(scheduler, make_call(1, 5))
    assert [unit.reason for unit in step.start] == [Formed.FULL, Formed.IDLE]
