"""Late Batching point by point: L1 to L3 and L6, as far as they are the scheduler's, and the worked example."""

from __future__ import annotations

from itertools import pairwise

import pytest

from app.scheduler.types import Operation, Profile, Stage

from ..world import make_device, make_program
from .drive import Ran, Request, drive

T = 1_000
CELL = Stage(Profile((T,) * 4), repeats=True)
#: Requests 6 to 9 are the batch that runs at first; one of them leaves at 102, the others at 105.
FIGURE_1 = [
    *(Request(98 * T, steps, steps) for steps in (4, 7, 7, 7)),
    *(Request(at * T, steps, steps) for at, steps in ((100, 3), (101, 5), (101, 7), (101, 2))),
]


def late(*requests: Request, stages: tuple[Stage, ...] = (CELL,), workers: int = 1, **options: object) -> Ran:
    program = make_program(stages=stages, policy="late", max_batch=4, **options)
    return drive(make_device(*[4] * workers), program, requests)


def test_figure_1_request_10_joins_at_102_and_returns_at_105() -> None:
    """The drawing itself is not in the paper's text: lengths are such that all that the text says of it holds."""
    ran = late(*FIGURE_1)
    assert [end // T for end in ran.ended] == [102, 105, 105, 105, 105, 110, 112, 107]
    joined = next(unit for unit in ran.units if 4 in [row.call.id for row in unit.rows])
    assert joined.started == 102 * T


def test_l3_no_step_is_padded_and_rows_of_any_length_run_together() -> None:
    """Length buckets do not part the rows of a cell: whatever its step, a row's next block is the same block (L1)."""
    ran = late(*FIGURE_1, length_buckets=(3, 5))
    assert all(unit.size == len(unit.rows) for unit in ran.units)
    assert ran.ended == late(*FIGURE_1).ended
    assert {unit.operation for unit in ran.units} <= {Operation.NEW, Operation.STRETCH, Operation.CONTINUE}


def test_l6_a_row_of_one_step_that_comes_in_the_middle_of_a_long_one_waits_for_one_step() -> None:
    stages = (Stage(Profile((T // 10,) * 4)), CELL, Stage(Profile((T // 10,) * 4)))
    for neighbours in ((CELL,), stages):
        ran = late(Request(0, 60), Request(20 * T + 1, 1), stages=neighbours)
        assert ran.latency[1] <= 3 * T


@pytest.mark.parametrize("workers", [1, 2])
def test_stages_around_a_cell_go_before_its_next_step(workers: int) -> None:
    """The embedding of newcomers and the head of those that leave; but a long embedding does not stop the cell."""
    slow = (Stage(Profile((5 * T,) * 4)), CELL, Stage(Profile((T,) * 4)))
    ran = late(Request(0, 50), *(Request(6 * T + 7 * T * i, 1) for i in range(20)), stages=slow, workers=workers)
    steps = [unit for unit in ran.units if unit.stage == 1]
    between = [
        sum(one.started < unit.started <= other.started for unit in ran.units if unit.stage == 0)
        for one, other in pairwise(steps)
    ]  # fmt: skip
    assert max(between) <= 1
    assert max(ran.latency[1:]) <= 20 * T
