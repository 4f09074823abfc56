from __future__ import annotations

import pytest

from app.scheduler.state import ProgramState
from app.scheduler.types import Profile, Program, Stage

TWO_STAGES = Program(0, "m", (Stage(Profile((10, 20))), Stage(Profile((1, 2)))), max_batch=2)


def test_time_is_that_of_all_stages() -> None:
    assert [ProgramState(TWO_STAGES, None, 0).time(rows) for rows in (1, 2)] == [11, 22]


@pytest.mark.parametrize(("failures", "broken"), [(8, False), (9, True), (16, True)])
def test_a_program_is_broken_when_most_recent_first_runs_failed(failures: int, broken: bool) -> None:
    state = ProgramState(TWO_STAGES, None, 0)
    state.recent.extend([True] * failures + [False] * (16 - failures))
    assert state.broken is broken


def test_few_runs_tell_nothing() -> None:
    state = ProgramState(TWO_STAGES, None, 0)
    state.recent.extend([True] * 15)
    assert not state.broken


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="no_wait"):
        ProgramState(Program(0, "m", policy="nope"), None, 0)
