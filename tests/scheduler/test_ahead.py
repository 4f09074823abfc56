"""Ahead-of-time scheduling: the next step of a cell is pushed behind the one that runs (Late Batching)."""

from __future__ import annotations

from typing import Any

import pytest

from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, Fault, Outcome, Profile, Program, Stage, Step, Unit

from .world import make_call, make_device, make_program

STEP = 100  # ns, however many rows
AHEAD = 30
CELL = Stage(Profile((STEP,) * 4), repeats=True)


def serving(
    ahead: int = AHEAD, *, cell: Stage = CELL, policy: str = "late", more: tuple[Program, ...] = ()
) -> Scheduler:
    scheduler = Scheduler(make_device(4, push_depth=2, push_ahead_ns=ahead, steps_ahead=True))
    scheduler.add_program(make_program(stages=(cell,), policy=policy, max_batch=4), 0)
    for program in more:
        scheduler.add_program(program, 0)
    return scheduler


def enter(scheduler: Scheduler, ident: int, now: int, *lengths: int, **options: Any) -> Step:
    scheduler.submit(make_call(ident, lengths=lengths, arrived=now, **options), now)
    return scheduler.step(now)


def launched(scheduler: Scheduler, unit: Unit, now: int) -> Step:
    scheduler.launched(unit.id, now)
    return scheduler.step(now)


def end(scheduler: Scheduler, unit: Unit, now: int, *ended: int, error: Fault | None = None) -> Step:
    scheduler.finished(Outcome(unit.id, error, STEP, ended), now)
    return scheduler.step(now)


def slots(step: Step) -> list[list[int]]:
    return [[row.slot for row in unit.rows] for unit in step.start]


class TestPushing:
    def test_not_before_the_device_lets_it_be_pushed(self) -> None:
        scheduler = serving()
        (first,) = enter(scheduler, 1, 0, 9).start
        step = launched(scheduler, first, 1)
        assert (step.start, step.wake_at) == ([], STEP - AHEAD)
        (second,) = scheduler.step(STEP - AHEAD).start
        assert (second.worker, second.begins, second.rows) == (0, STEP, first.rows)
        assert scheduler.alive == 1

    def test_not_before_it_is_known_to_be_on_the_stream(self) -> None:
        scheduler = serving(AT_ONCE)
        assert len(enter(scheduler, 1, 0, 9).start) == 1
        assert scheduler.step(STEP - 1).start == []

    def test_no_round_trip_between_steps(self) -> None:
        scheduler = serving()
        (unit,) = enter(scheduler, 1, 0, 4).start
        for number in range(1, 4):
            launched(scheduler, unit, STEP * (number - 1))
            (behind,) = scheduler.step(number * STEP - AHEAD).start
            assert end(scheduler, unit, number * STEP).start == []
            unit = behind
        assert [call.id for call in end(scheduler, unit, 4 * STEP, 0).done] == [1]
        assert scheduler.alive == 0

    def test_a_row_that_ends_is_not_in_it(self) -> None:
        scheduler = serving(AT_ONCE)
        (first,) = enter(scheduler, 1, 0, 9, 1).start
        assert slots(launched(scheduler, first, 1)) == [[100]]
        assert scheduler.alive == 2

    def test_rows_whose_ends_nobody_knows_are_not_pushed(self) -> None:
        scheduler = serving(AT_ONCE, cell=Stage(CELL.profile, True, most_steps=9, own_steps=True))
        (first,) = enter(scheduler, 1, 0, 9).start
        assert launched(scheduler, first, 1).start == []

    @pytest.mark.parametrize("policy", ["no_wait", "window", "static"])
    def test_only_where_the_policy_takes_all_that_stand_there(self, policy: str) -> None:
        scheduler = serving(AT_ONCE, policy=policy)
        (first,) = enter(scheduler, 1, 0, *[9] * 4).start
        assert launched(scheduler, first, 1).start == []


class TestJoining:
    def test_a_join_waits_for_what_was_pushed_and_one_step(self) -> None:
        scheduler = serving()
        (first,) = enter(scheduler, 1, 0, 9).start
        launched(scheduler, first, 1)
        (second,) = scheduler.step(STEP - AHEAD).start
        came = STEP - AHEAD + 1  # just too late for the second
        assert enter(scheduler, 2, came, 3).start == []
        end(scheduler, first, STEP)
        launched(scheduler, second, STEP)
        (third,) = scheduler.step(2 * STEP - AHEAD).start
        assert [row.slot for row in third.rows] == [100, 200]
        assert third.begins - came <= AHEAD + STEP

    def test_whoever_waits_joins_the_unit_that_is_pushed(self) -> None:
        scheduler = serving()
        (first,) = enter(scheduler, 1, 0, 9).start
        enter(scheduler, 2, 5, 3)
        launched(scheduler, first, 6)
        assert slots(scheduler.step(STEP - AHEAD)) == [[100, 200]]

    def test_those_that_go_first_take_the_places(self) -> None:
        scheduler = serving()
        (first,) = enter(scheduler, 1, 0, *[9] * 4, priority=2).start
        launched(scheduler, first, 1)
        enter(scheduler, 2, 5, 3, 3, priority=1)
        (second,) = scheduler.step(STEP - AHEAD).start
        assert [row.slot for row in second.rows] == [200, 201, 100, 101]
        step = end(scheduler, first, STEP)  # the others wait
        assert scheduler.waiting(1) == 2
        assert step.start == []

    def test_another_program_that_goes_first_goes_first(self) -> None:
        scheduler = serving(AT_ONCE, more=(make_program(2, batch_ns=(10,), policy="no_wait"),))
        (first,) = enter(scheduler, 1, 0, 9, priority=2).start
        (other,) = enter(scheduler, 2, 1, 0, program=2, priority=1).start
        assert other.program == 2
        assert launched(scheduler, first, 2).start == []  # the worker has two units


class TestLeaving:
    def test_a_call_that_leaves_ends_with_the_last_unit_that_has_it(self) -> None:
        scheduler = serving(AT_ONCE)
        (first,) = enter(scheduler, 1, 0, 9).start
        (second,) = launched(scheduler, first, 1).start
        scheduler.cancel(1, 2)
        launched(scheduler, second, 3)
        assert end(scheduler, first, STEP).start == []
        assert scheduler.alive == 1
        end(scheduler, second, 2 * STEP)
        assert scheduler.alive == 0

    def test_a_row_that_would_end_too_late_leaves(self) -> None:
        scheduler = serving(AT_ONCE)
        (first,) = enter(scheduler, 1, 0, 9, deadline=STEP + 50).start
        step = launched(scheduler, first, 1)
        assert [drop.call.id for drop in step.drop] == [1]
        assert step.start == []


class TestFaults:
    def test_what_is_behind_a_fault_is_void_and_runs_again(self) -> None:
        scheduler = serving(AT_ONCE)
        (first,) = enter(scheduler, 1, 0, 9).start
        (second,) = launched(scheduler, first, 1).start
        assert end(scheduler, first, STEP, error=Fault.MODEL).start == []
        assert launched(scheduler, second, STEP).start == []  # nothing is pushed behind it
        (again,) = end(scheduler, second, 2 * STEP, error=Fault.VOID).start
        assert again.rows == first.rows
        assert [row.steps for row in again.rows] == [0]
        assert launched(scheduler, again, 2 * STEP).start == []  # nor behind one that runs again
        step = end(scheduler, again, 3 * STEP, error=Fault.MODEL)
        assert [drop.call.id for drop in step.drop] == [1]
        assert scheduler.alive == 0

    def test_a_bad_row_is_found(self) -> None:
        scheduler = serving(AT_ONCE)
        (first,) = enter(scheduler, 1, 0, 9, 9).start
        (second,) = launched(scheduler, first, 1).start
        end(scheduler, first, STEP, error=Fault.MODEL)
        (both,) = end(scheduler, second, 2 * STEP, error=Fault.VOID).start
        step = end(scheduler, both, 3 * STEP, error=Fault.MODEL)
        assert slots(step)[0] == [100]
        assert not step.drop

    def test_a_lost_device(self) -> None:
        scheduler = serving(AT_ONCE)
        (first,) = enter(scheduler, 1, 0, 9).start
        (second,) = launched(scheduler, first, 1).start
        assert len(end(scheduler, first, STEP, error=Fault.DEVICE).drop) == 1
        end(scheduler, second, STEP, error=Fault.DEVICE)
        assert scheduler.alive == 0
