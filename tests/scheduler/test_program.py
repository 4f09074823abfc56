"""What is kept of a program, and the order of the programs of a device."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.curve import learn
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables, solve
from app.scheduler.optimal.time_left import TimeLeft
from app.scheduler.policies import policy_class
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import DeviceSpec, Formed, Outcome, Program, Stage, Unit, WorkerSpec

from .driven import feed, scheduler_of
from .world import make_call, make_device, make_program

# What is kept of a program: its health, and the facts that its policy sees.


S = 1_000_000_000

DEVICE = DeviceSpec((WorkerSpec(1), WorkerSpec(32)), max_alive=20)

TWO_STAGES = Program(0, "m", (Stage(Profile((10, 20))), Stage(Profile((1, 2)))), max_batch=2)


def state_of(program: Program, device: DeviceSpec) -> ProgramState:
    return ProgramState(program, None, device, policy_class(program.policy.name)().largest, 0)


def ran(size: int, stage: int) -> Unit:
    """A unit as it is when it has ended."""
    return Unit(0, 0, 1, stage, [], size, Formed.IDLE, 0)


def test_tables_are_those_of_the_load_with_the_hand_over() -> None:
    """At 30 beside 100 a row, the peak is 7.7 million; computing more slowly is less than as much more load."""
    stage = Stage(Profile((100, 200), handover_ns=30))
    state = state_of(Program(1, "m", (stage,), max_batch=2), DeviceSpec((WorkerSpec(2),)))
    tables = solve(stage.profile, loads=(0.5, 0.9))
    assert tables.peak == pytest.approx(2e9 / 230)
    state.estimates.set_control(tables)
    state.estimates.latency[0].observe(2, 400)
    slower = state.estimates.latency[0].speed.scale
    state.tick(S)
    assert slower > 1.1
    assert state.estimates.scale == pytest.approx((slower * 200 + 30) / 230)


def test_what_was_learnt_begins_again_with_a_new_profile() -> None:
    state = state_of(TWO_STAGES, DEVICE)
    for _ in range(50):
        learn(state.estimates.latency, ran(2, 0), Outcome(0, None, 60), 0)
        learn(state.estimates.latency, ran(2, 1), Outcome(0, None, 6), 0)
    assert state.estimates.latency[0].speed.scale > 2.5
    state.reprofile(Profile((100, 110)))
    assert [latency.speed.scale > 2.5 for latency in state.estimates.latency] == [False, True]
    assert (state.estimates.line.alpha, state.estimates.line.beta) == pytest.approx((90, 10))
    assert state.estimates.latency[0].predict(2) == 110


class TestFull:
    CELL = Stage(Profile((10, 12, 14, 16, 20, 24, 28, 31)), repeats=True)  # four rows are nearly as fast as eight

    def test_a_program_of_one_unit_runs_as_many_as_it_can(self) -> None:
        program = Program(1, "m", (self.CELL,), max_batch=8, one_unit=True)
        assert state_of(program, DeviceSpec((WorkerSpec(8),))).full == [8]

    def test_a_new_profile_and_a_cap_count(self) -> None:
        state = state_of(Program(1, "m", (self.CELL,), max_batch=8), DeviceSpec((WorkerSpec(8),)))
        state.reprofile(Profile((10,) * 8))
        assert state.full == [8]
        state.cap(0, 3)
        assert state.full == [3]

    def test_no_more_rows_run_at_once_than_pay(self) -> None:
        scheduler = scheduler_of(make_program(stages=(self.CELL,), max_batch=8))
        (unit,) = feed(scheduler, make_call(1, lengths=(3,) * 8)).start
        assert len(unit.rows) == 4


# A fast model overtakes a slow one if that waits for company; models of about one speed go in order of arrival.


#: Nanoseconds, by rows.
FAST, SLOW = (10, 11, 12, 13), (100, 110, 120, 130)


@pytest.mark.parametrize(
    ("workers", "arrived", "now", "first"),
    [
        pytest.param(1, 60, 61, 1, id="just-now"),
        pytest.param(1, 60, 200, 2, id="at-10-times-the-speed-both-have-waited-long"),
        pytest.param(2, 35, 500, 2, id="two-workers"),
        pytest.param(2, 40, 500, 1, id="rows-that-overtake-on-two-may-be-half-as-late"),
    ],
)
def test_a_row_of_a_fast_model_overtakes_unless_it_came_too_late(workers, arrived, now, first) -> None:
    """That of the slow model, 1, came at 0."""
    programs = (make_program(number, batch_ns=times, max_batch=4) for number, times in ((1, SLOW), (2, FAST)))
    scheduler = scheduler_of(*programs, device=make_device(*[4] * workers))
    scheduler.submit(make_call(3, program=1), 0)
    scheduler.submit(make_call(4, program=2, arrived=arrived), arrived)
    assert scheduler.step(now).start[0].program == first


@pytest.mark.parametrize("others", [False, True])
def test_tables_of_several_workers_count_only_while_no_other_model_has_rows(others: bool) -> None:
    """The table runs one row of two, expecting a second worker for the other one, which another model may take."""
    programs = (make_program(number, batch_ns=SLOW, max_batch=4) for number in (1, 2))
    scheduler = scheduler_of(*programs, device=make_device(4, 4))
    sizes = (1, 2, 3, 4)
    table = ControlTables(
        (0.5,), ((0, 1, 1, 1),), 1, sizes, 1e6, 2, sizes, beside=TimeLeft((1,), (100,), 1), others=(((0, 1),),)
    )
    scheduler.control(1, table, 0)
    scheduler.submit(make_call(1, 2, program=1, arrived=0), 0)
    if others:
        scheduler.submit(make_call(2, program=2, arrived=1), 1)
    assert len(scheduler.step(1).start[0].rows) == (2 if others else 1)
