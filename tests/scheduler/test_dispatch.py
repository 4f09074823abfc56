"""A unit is handed over behind another one just before that ends; predictions know when it will begin."""

from __future__ import annotations

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, Profile, Reason, Stage

from .test_scheduler import calls_of, feed
from .world import make_call, make_device, make_program

CURVE = (100, 110, 120, 130)


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
