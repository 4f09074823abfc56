"""Whether a call may come: predictions from batch times, for the batch in which its rows will run."""

from __future__ import annotations

import pytest
from tiers import full

from app.scheduler import admission
from app.scheduler.estimates.profile import linear
from app.scheduler.optimal.tables import solve
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, LOWEST_PRIORITY, Klass, Profile, Program, Reason, Refusal, Stage, Unit
from app.sim.fleet import Setup, run

from .test_scheduler import CURVE, feed, finish
from .world import make_call, make_device, make_program

MS = 1_000_000


def scheduler_of(*programs: Program, capacities: tuple[int, ...] = (4,)) -> Scheduler:
    scheduler = Scheduler(make_device(*capacities))
    for program in programs:
        scheduler.add_program(program, 0)
    return scheduler


def soonest(scheduler: Scheduler, rows: int, now: int = 0, program: int = 1) -> int:
    """The earliest deadline in milliseconds for which a call of `rows` rows is admitted."""
    for deadline in range(1_000):
        if scheduler.admit(program, rows, Klass.REALTIME, deadline * MS, now) is None:
            return deadline
    raise AssertionError("nothing is admitted")


def backlog_ns(scheduler: Scheduler, now: int) -> int:
    """Until all that waits and runs is done."""
    everything = admission.AdmissionRequest(-1, 0, (Klass.BEST_EFFORT, LOWEST_PRIORITY), None)
    return admission.backlog_ns(scheduler._ledger, scheduler._workers, scheduler.device, now, everything)


class TestBacklog:
    """Batches of 1, 2, 3, 4 rows take 10, 12, 14, 16 ms."""

    @pytest.mark.parametrize(("now", "expected"), [(0, 16 + 16 + 12), (10, 6 + 16 + 12), (16, 16 + 12), (99, 16 + 12)])
    def test_what_runs_has_its_rest_and_what_waits_goes_in_full_batches(self, now: int, expected: int) -> None:
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4))
        feed(scheduler, make_call(1, 10))
        assert backlog_ns(scheduler, now * MS) == expected * MS

    def test_units_at_once_share_it(self) -> None:
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4), capacities=(4, 4))
        feed(scheduler, make_call(1, 16))
        assert backlog_ns(scheduler, 0) == (16 + 16 + 16 + 16) // 2 * MS


class TestDeadline:
    def test_company_in_the_last_batch_is_cheap(self) -> None:
        """Four run until 16, two wait: one more joins them and takes 2 ms; a third fills up; a fourth begins anew."""
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4))
        feed(scheduler, make_call(1, 6))
        assert [soonest(scheduler, rows) for rows in (1, 2, 3)] == [30, 32, 42]

    def test_past_deadline_and_unknown_times(self) -> None:
        scheduler = scheduler_of(make_program())
        assert scheduler.admit(1, 1, Klass.REALTIME, 9, 10) == Refusal(Reason.DEADLINE_UNREACHABLE, MS)
        assert scheduler.admit(1, 1, Klass.REALTIME, 10, 10) is None

    def test_hint_is_the_backlog_without_the_newcomers(self) -> None:
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4))
        feed(scheduler, make_call(1, 6))
        assert scheduler.admit(1, 1, Klass.REALTIME, 29 * MS, 0) == Refusal(Reason.DEADLINE_UNREACHABLE, 28 * MS)

    def test_scale_that_has_every_call_refused_returns(self) -> None:
        """A device that was slow for a while refuses all; as nothing runs then, only windows can undo it."""
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4))
        for now in range(60):
            finish(scheduler, feed(scheduler, make_call(now), now=now).start[0], now, compute_ns=60 * MS)
        assert scheduler.admit(1, 1, Klass.REALTIME, 15 * MS, 0) is not None
        for _ in range(40):
            scheduler.tick(1)
        assert scheduler.admit(1, 1, Klass.REALTIME, 15 * MS, 0) is None


class TestHandover:
    """Batches of 1, 2, 3, 4 rows compute for 10, 12, 14, 16 ms, and cost 3 ms to hand over."""

    def scheduler(self, **device: int) -> Scheduler:
        scheduler = Scheduler(make_device(4, **device))
        stages = (Stage(Profile(CURVE, handover_ns=3 * MS)),)
        scheduler.add_program(make_program(stages=stages, max_batch=4), 0)
        return scheduler

    def test_units_that_are_handed_over_ahead_follow_at_once(self) -> None:
        scheduler = self.scheduler(push_depth=2, push_ahead_ns=3 * MS)
        feed(scheduler, make_call(1, 10))
        assert backlog_ns(scheduler, 0) == (19 + 16 + 12) * MS
        assert [soonest(self.scheduler(push_depth=2, push_ahead_ns=2 * MS), rows) for rows in (1, 8)] == [13, 34]


class TestOverload:
    """What is cut is judged again: rows that would end too late leave, and others take their places."""

    def scheduler(self) -> tuple[Scheduler, Unit]:
        """A worker of four rows, busy until 10."""
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4))
        return scheduler, feed(scheduler, make_call(0)).start[0]

    def test_late_rows_leave_when_the_unit_is_cut_and_others_take_their_places(self) -> None:
        """At 10 a batch of four ends at 26: call 1 and 3 are late, so 2, 4, 5 and 6 run."""
        scheduler, unit = self.scheduler()
        deadlines = {1: 25, 2: 26, 3: 20, 4: None, 5: 90, 6: 27}
        feed(scheduler, *(make_call(i, deadline=d and d * MS) for i, d in deadlines.items()))
        step = finish(scheduler, unit, 10 * MS)
        assert [(drop.call.id, drop.reason) for drop in step.drop] == [
            (1, Reason.DEADLINE_UNREACHABLE), (3, Reason.DEADLINE_UNREACHABLE),
        ]  # fmt: skip
        assert [[row.call.id for row in unit.rows] for unit in step.start] == [[2, 4, 5, 6]]
        assert scheduler.waiting(1) == 0

    def test_rows_that_remain_may_end_in_time_in_a_smaller_batch(self) -> None:
        """Four rows end at 26, the two that are left at 22: what is cut anew is judged by its own size."""
        scheduler, unit = self.scheduler()
        feed(scheduler, make_call(1, deadline=25 * MS), make_call(2, deadline=25 * MS), make_call(3), make_call(4))
        step = finish(scheduler, unit, 10 * MS)
        assert [drop.call.id for drop in step.drop] == [1, 2]
        assert [unit.size for unit in step.start] == [2]

    def test_call_of_several_rows_leaves_whole_though_only_some_are_in_the_cut(self) -> None:
        """Call 2 has five rows, three of them in the cut; the other two go with them."""
        scheduler, unit = self.scheduler()
        feed(scheduler, make_call(1), make_call(2, 5, deadline=25 * MS), make_call(3, 2))
        step = finish(scheduler, unit, 10 * MS)
        assert [drop.call.id for drop in step.drop] == [2]
        assert [[row.call.id for row in unit.rows] for unit in step.start] == [[1, 3, 3]]
        assert scheduler.waiting(1) == 0

    def test_rows_for_which_there_is_no_room_are_not_judged_in_place_of_those_that_run(self) -> None:
        """Two rows of a cell are alive, as many as may be: the row before them is passed over, the late one leaves."""
        cell = Stage(Profile(CURVE), repeats=True)
        scheduler = Scheduler(make_device(2, max_alive=2))
        scheduler.add_program(make_program(stages=(cell,), max_batch=2), 0)
        unit = feed(scheduler, make_call(1, priority=1), make_call(2, priority=1, deadline=20 * MS)).start[0]
        feed(scheduler, make_call(3, arrived=1), now=1)
        step = finish(scheduler, unit, 12 * MS)  # another step of two rows would end at 24
        assert [drop.call.id for drop in step.drop] == [2]
        assert [[row.call.id for row in unit.rows] for unit in step.start] == [[3, 1]]

    def test_size_that_is_run_is_judged_and_not_the_rows(self) -> None:
        """`static` pads one row to four: 16 ms."""
        scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4, policy="static", max_delay_ns=0))
        assert [drop.call.id for drop in feed(scheduler, make_call(1, deadline=15 * MS)).drop] == [1]
        assert [unit.size for unit in feed(scheduler, make_call(2, deadline=16 * MS)).start] == [4]


@full
@pytest.mark.parametrize("policy", ["no_wait", "adaptive", "window", "static", "preferred"])
def test_goodput_does_not_collapse_in_overload(policy: str) -> None:
    """At 1.5 times what the device can serve, calls answered in time are at least 0.9 of those at load 0.9.

    0.93 for `preferred`, 1.1 for the others; without the second look when a unit is cut it is 0.15.
    """
    profile = linear(7, 0.6, 32)
    tables = solve(profile.stage(), loads=(0.5, 0.98))
    goodput = {}
    for load in (0.9, 1.5):
        setup = Setup(
            profile, load * profile.peak, policy, requests=6_000, seed=3, deadline_ns=60 * MS, max_queue=1 << 20,
            tables=tables,
        )  # fmt: skip
        goodput[load] = run(setup)["goodput"]
    assert goodput[1.5] >= 0.9 * goodput[0.9]


class TestWhatGoesBefore:
    """Only work that goes before a call counts against its deadline."""

    def admitted(self, priority: int, deadline_ms: int) -> bool:
        """A call beside 36 rows of priority 2: batches of four take 10 ms, and one runs."""
        scheduler = Scheduler(make_device(4))
        scheduler.add_program(make_program(batch_ns=(10 * MS,) * 4, max_batch=4), 0)
        feed(scheduler, *(make_call(ident, priority=2) for ident in range(40)))
        assert scheduler.waiting(1) == 36
        return scheduler.admit(1, 1, Klass.REALTIME, deadline_ms * MS, 0, priority) is None

    def test_rows_of_a_lower_priority_go_behind(self) -> None:
        assert self.admitted(1, 20)
        assert not self.admitted(1, 19)  # the batch that runs, and its own

    def test_a_class_goes_before_every_priority(self) -> None:
        scheduler = Scheduler(make_device(4))
        scheduler.add_program(make_program(batch_ns=(10 * MS,) * 4, max_batch=4), 0)
        feed(scheduler, *(make_call(ident, klass=Klass.BEST_EFFORT, priority=1) for ident in range(40)))
        assert scheduler.admit(1, 1, Klass.REALTIME, 20 * MS, 0, 9) is None
        assert scheduler.admit(1, 1, Klass.BEST_EFFORT, 20 * MS, 0, 9) is not None

    def test_rows_behind_it_may_fill_its_batch(self) -> None:
        """One row alone would take 1 ms; with the three that fill its batch it takes 10."""
        scheduler = Scheduler(make_device(4))
        scheduler.add_program(make_program(batch_ns=(1 * MS, 10 * MS, 10 * MS, 10 * MS), max_batch=4), 0)
        feed(scheduler, *(make_call(ident, priority=2) for ident in range(8)))
        assert scheduler.admit(1, 1, Klass.REALTIME, 19 * MS, 0, 1) is not None
        assert scheduler.admit(1, 1, Klass.REALTIME, 20 * MS, 0, 1) is None

    def test_units_that_wait_for_a_worker_count_once(self) -> None:
        """The second of two pushed units begins when the first ends: 10 ms are left of that, and 10 for it."""
        scheduler = Scheduler(make_device(1, push_depth=2, push_ahead_ns=AT_ONCE))
        scheduler.add_program(make_program(batch_ns=(10 * MS,), max_batch=1), 0)
        feed(scheduler, make_call(1, 2))
        assert backlog_ns(scheduler, 0) == 20 * MS
        assert backlog_ns(scheduler, 4 * MS) == 16 * MS
