"""What is kept of a program: its health, and the facts that its policy sees."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal.tables import solve
from app.scheduler.rows.program import ProgramState
from app.scheduler.types import DeviceSpec, Formed, Outcome, Profile, Program, Stage, Unit, WorkerSpec

CURVE = linear(3, 0.35, 32).batch_ns


S = 1_000_000_000

DEVICE = DeviceSpec((WorkerSpec(1), WorkerSpec(32)), max_alive=20)

TWO_STAGES = Program(0, "m", (Stage(Profile((10, 20))), Stage(Profile((1, 2)))), max_batch=2)


def ran(size: int, *, stage: int = 0, running: int = 1, started: int = 0, behind: bool = False) -> Unit:
    """A unit as it is when it has ended."""
    made = Unit(0, 0, 1, stage, [], size, Formed.IDLE, started, predicted=0, running=running)
    made.behind = behind
    return made


class TestHandover:
    """Batches of one and two rows compute for 100 and 200, and cost 30 beside."""

    STAGE = Stage(Profile((100, 200), handover_ns=30))

    def state(self, stages: int = 1, **device: int) -> ProgramState:
        program = Program(1, "m", (self.STAGE,) * stages, max_batch=2)
        return ProgramState(program, None, DeviceSpec((WorkerSpec(2),), **device), 0)

    def test_tables_are_those_of_the_load_with_it(self) -> None:
        """At 30 beside 100 a row, the peak is 7.7 million; computing twice as slow is 1.77 times the load."""
        state = self.state()
        tables = solve(self.STAGE.profile, loads=(0.5, 0.9))
        assert tables.peak == pytest.approx(2e9 / 230)
        state.set_control(tables)
        state.latency[0].scale = 2.0
        state.latency[0].observe(2, 400)
        state.tick(S)
        assert state.facts.scale == pytest.approx(430 / 230)


class TestObserve:
    def test_what_was_learnt_begins_again_with_a_new_profile(self) -> None:
        state = ProgramState(TWO_STAGES, None, DEVICE, 0)
        for _ in range(50):
            state.observe(ran(2), Outcome(0, None, 60), 0)
            state.observe(ran(2, stage=1), Outcome(0, None, 6), 0)
        assert state.latency[0].scale > 2.5
        state.reprofile(Profile((100, 110)))
        assert [latency.scale > 2.5 for latency in state.latency] == [False, True]
        assert (state.line.alpha, state.line.beta) == pytest.approx((90, 10))
        assert state.latency[0].predict(2) == 110


class TestFull:
    CELL = Stage(Profile((10, 12, 14, 16, 20, 24, 28, 31)), repeats=True)  # four rows are nearly as fast as eight

    def test_a_program_of_one_unit_runs_as_many_as_it_can(self) -> None:
        program = Program(1, "m", (self.CELL,), "adaptive", max_batch=8, one_unit=True)
        assert ProgramState(program, None, DeviceSpec((WorkerSpec(8),)), 0).full == [8]

    def test_a_new_profile_and_a_cap_count(self) -> None:
        state = ProgramState(
            Program(1, "m", (self.CELL,), "adaptive", max_batch=8), None, DeviceSpec((WorkerSpec(8),)), 0
        )
        state.reprofile(Profile((10,) * 8))
        assert state.full == [8]
        state.cap(0, 3)
        assert state.full == [3]
