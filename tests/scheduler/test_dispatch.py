"""A unit is handed over behind another one just before that ends; predictions know when it will begin."""

from __future__ import annotations

import pytest

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, Profile, Reason, Stage

from .test_scheduler import calls_of, feed
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

    def test_without_time_ahead_the_worker_gets_it_at_the_predicted_end(self) -> None:
        scheduler = scheduler_of(ahead=0)
        feed(scheduler, make_call(1))
        assert feed(scheduler, make_call(2), now=10).wake_at == 100
        assert [calls_of(unit) for unit in scheduler.step(100).start] == [[2]]


class TestCallsThatLeaveInTheStepThatStartsThem:
    """Two rows would be in time, on a worker each, and the third behind one of them would not."""

    def scheduler(self) -> Scheduler:
        scheduler = Scheduler(make_device(1, 1, push_depth=2, push_ahead_ns=AT_ONCE))
        scheduler.add_program(make_program(batch_ns=(10,), policy="no_wait", max_batch=1), 0)
        scheduler.submit(make_call(1, 3, deadline=15), 0)
        return scheduler

    def test_none_of_their_rows_starts_and_others_take_the_workers(self) -> None:
        scheduler = self.scheduler()
        scheduler.submit(make_call(2, 2), 0)
        step = scheduler.step(0)
        assert [drop.reason for drop in step.drop] == [Reason.DEADLINE_UNREACHABLE]
        assert [calls_of(unit) for unit in step.start] == [[2], [2]]
        assert sorted(unit.worker for unit in step.start) == [0, 1]
        assert (scheduler._ledger.alive, scheduler.waiting(1)) == (2, 0)

    def test_a_closed_program_is_forgotten_with_them(self) -> None:
        scheduler = self.scheduler()
        scheduler.remove_program(1, 0)
        step = scheduler.step(0)
        assert (step.start, len(step.drop)) == ([], 1)
        assert 1 not in scheduler.states
        assert scheduler._ledger.alive == 0


class TestHandover:
    """Beside computing for 100 to 130, a batch costs 40 to hand over."""

    STAGES = (Stage(Profile(CURVE, handover_ns=40)),)

    def scheduler(self, **device: int) -> Scheduler:
        scheduler = Scheduler(make_device(4, **device))
        scheduler.add_program(make_program(stages=self.STAGES, policy="no_wait"), 0)
        return scheduler

    @pytest.mark.parametrize(("deadline", "kept"), [(139, False), (140, True)])
    def test_rows_that_would_end_too_late_with_it_leave(self, deadline: int, kept: bool) -> None:
        step = feed(self.scheduler(), make_call(1, deadline=deadline))
        assert [calls_of(unit) for unit in step.start] == ([[1]] if kept else [])
        assert [drop.reason for drop in step.drop] == ([] if kept else [Reason.DEADLINE_UNREACHABLE])

    def test_a_hold_ends_early_enough_for_it(self) -> None:
        """By a quarter more than it takes, as for all that is predicted."""
        times = []
        for handover_ns in (None, 400_000):
            scheduler = Scheduler(make_device(4))
            stages = (Stage(Profile((10**6,) * 4, handover_ns=handover_ns)),)
            scheduler.add_program(make_program(stages=stages, policy="window", max_delay_ns=10**9), 0)
            wake_at = feed(scheduler, make_call(1, deadline=10**8)).wake_at
            assert wake_at is not None
            times.append(wake_at)
        assert times[0] - times[1] == 500_000


class TestDeadlines:
    @pytest.mark.parametrize(("deadline", "kept"), [(209, False), (210, True)])
    def test_a_pushed_unit_ends_after_the_one_before_it(self, deadline: int, kept: bool) -> None:
        """Pushed at 75, it begins at 100 and takes 110, two rows long."""
        scheduler = scheduler_of()
        feed(scheduler, make_call(1))
        feed(scheduler, make_call(2), make_call(3, deadline=deadline), now=75)
        assert [calls_of(unit) for unit in scheduler.running][1:] == ([[2, 3]] if kept else [[2]])
        assert (3 in {call.id for call in scheduler.calls}) == kept
