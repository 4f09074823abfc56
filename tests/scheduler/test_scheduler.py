"""Golden cases: what the scheduler says, step by step, in the situations that its text describes."""

from __future__ import annotations

import pytest

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Drop, Klass, Reason, Refusal, Stage

from .driven import feed, finish, scheduler_of
from .world import make_call, make_device, make_program

MS, S = 1_000_000, 1_000_000_000
CURVE = (10 * MS, 12 * MS, 14 * MS, 16 * MS)


def left(drops: list[Drop]) -> list[tuple[int, Reason, int]]:
    return [(drop.call.id, drop.reason, drop.row) for drop in drops]


class TestAdmission:
    def test_room_is_counted_in_rows(self) -> None:
        scheduler = scheduler_of(make_program(max_queue=4), device=make_device(1))
        feed(scheduler, make_call(1, 4))  # one of them runs
        assert sum(scheduler.states[1].queue.waiting) == 3
        assert scheduler.admit(1, 1, Klass.REALTIME, None, 0) is None
        assert scheduler.admit(1, 2, Klass.REALTIME, None, 0) == Refusal(Reason.QUEUE_FULL, 1 * MS)

    @pytest.mark.parametrize("program", [1, 9], ids=["closed", "unknown"])
    def test_closed_and_unknown_programs(self, program: int) -> None:
        scheduler = scheduler_of()
        scheduler.remove_program(1, 0)
        assert scheduler.admit(program, 1, Klass.REALTIME, None, 0).reason is Reason.CLOSED

    def test_call_whose_program_went_between_admission_and_submission(self) -> None:
        scheduler = scheduler_of()
        scheduler.remove_program(1, 0)
        call = make_call(1)
        assert left(feed(scheduler, call).drop) == [(1, Reason.CLOSED, -1)]
        assert not call.alive

    def test_no_worker_and_unknown_policy(self) -> None:
        with pytest.raises(ValueError, match="at least one"):
            Scheduler(make_device())
        with pytest.raises(ValueError, match="expected one of"):
            scheduler_of(make_program(policy="fifo"))


class TestDeadlines:
    def test_earliest_of_deadline_and_delay_wakes(self) -> None:
        scheduler = scheduler_of(make_program(policy="window", max_delay_ns=10 * MS))
        assert feed(scheduler, make_call(1, deadline=50 * MS)).wake_at == 10 * MS
        assert feed(scheduler, make_call(2, deadline=10 * MS)).wake_at == 8 * MS  # timers are late by up to 2

    @pytest.mark.parametrize("policy", ["window", "static", "preferred"])
    def test_a_row_that_is_held_leaves_in_time(self, policy: str) -> None:
        """Due before its delay is over: 22 less 4 to compute, a quarter of that, and 2 for a late timer."""
        program = make_program(policy=policy, batch_ns=(4 * MS,) * 4, max_batch=4, max_delay_ns=20 * MS)
        scheduler = scheduler_of(program)
        scheduler.refused(1, 402, 0)  # what preferred needs to want two rows
        scheduler.tick(S)
        step = feed(scheduler, make_call(1, deadline=S + 22 * MS, arrived=S), now=S)
        assert (step.start, step.wake_at) == ([], S + 15 * MS)
        (unit,) = scheduler.step(S + 15 * MS).start
        assert unit.reason == "deadline"
        step = finish(scheduler, unit, S + 19 * MS)
        assert ([call.id for call in step.done], step.drop) == ([1], [])


def test_a_bound_that_is_lowered_holds_for_rows_that_start_later() -> None:
    """Rows alive beyond it run on together, so that they end soon."""
    cell = make_program(1, stages=(Stage(repeats=True),), max_batch=4)
    scheduler = scheduler_of(cell, device=make_device(4))
    unit = feed(scheduler, make_call(1, 3)).start[0]
    scheduler.bound(1, 2, 1)
    scheduler.bound(1, 9, 1)  # never raised
    scheduler.bound(7, 1, 1)  # gone
    scheduler.submit(make_call(2, 4), 1)
    step = finish(scheduler, unit, 2)
    assert [len(unit.rows) for unit in step.start] == [3]
    step = finish(scheduler, step.start[0], 3, ended=(0, 1, 2))
    assert [len(unit.rows) for unit in step.start] == [2]
    scheduler.tick(4)
    assert scheduler.states[1].full == [2]


def test_statistics_of_a_program() -> None:
    scheduler = scheduler_of(make_program(batch_ns=CURVE, max_batch=4))
    unit = feed(scheduler, make_call(1, 4)).start[0]
    scheduler.tick(20 * MS)  # 200 rows a second: only four in 16 ms do better
    assert scheduler.states[1].estimates.arrivals.rate == pytest.approx(200)
    assert scheduler.policies[1].target(scheduler.states[1].estimates) == 3
    finish(scheduler, unit, 40 * MS, compute_ns=32 * MS)
    scale = scheduler.states[1].estimates.latency[0].speed.scale
    assert 1.1 < scale < 1.5  # it took twice as long as predicted
    scheduler.tick(60 * MS)
    line = scheduler.states[1].estimates.line
    assert (line.alpha, line.beta) == pytest.approx((scale * 8 * MS, scale * 2 * MS))
