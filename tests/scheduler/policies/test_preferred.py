"""The policies preferred and late."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from app.scheduler.estimates.profile import Profile
from app.scheduler.policies import Cut, Hold, policy_class
from app.scheduler.policies.base import cut_rows
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Formed, Operation, Stage
from planner.profile_times import linear

from ..driven import Ran, Request, calls_of, drive, feed, finish, scheduler_of
from ..views import estimates_of, offer_of
from ..world import make_call, make_device, make_program

# Khan et al. point by point: K1 to K4 and the traps, through the scheduler; then the policy by itself.


MS, S = 1_000_000, 1_000_000_000
LARGEST = 32
CURVE = linear(3, 0.35, LARGEST).batch_ns
FOREVER = 1 << 60


def preferring(curve: Sequence[int] = CURVE, **options: Any) -> Scheduler:
    """One worker under the preset."""
    options = {"max_delay_ns": FOREVER, "max_queue": 1 << 20, "max_batch": len(curve), **options}
    return scheduler_of(make_program(batch_ns=curve, policy="preferred", **options), device=make_device(len(curve)))


def arrive(scheduler: Scheduler, *idents: int, now: int) -> list[list[int]]:
    """The calls of the units that start when these come."""
    return [calls_of(unit) for unit in feed(scheduler, *(make_call(n, arrived=now) for n in idents), now=now).start]


def test_lone_request_waits_for_ever_without_a_bound() -> None:
    """K3: the monitor scans before it sleeps, when nothing has arrived: so the first window's rows go in pairs.

    The letter: no timer is asked for before the end of the bound, here years away."""
    scheduler = preferring()
    step = feed(scheduler, make_call(1, arrived=S), now=S)
    assert (step.start, step.wake_at) == ([], S + FOREVER)
    for now in (S + MS, 60 * S, 3_600 * S):
        assert scheduler.step(now).start == []
    assert arrive(scheduler, 2, 3, 4, now=3_601 * S) == [[1, 2]]
    (unit,) = scheduler.units.values()
    assert [calls_of(unit) for unit in finish(scheduler, unit, 3_602 * S).start] == [[3, 4]]


def test_exactly_the_preferred_size_leaves() -> None:
    """K4: gather, dispatch, repeat."""
    scheduler = preferring()
    scheduler.refused(1, 600, 0)
    scheduler.tick(S)
    assert arrive(scheduler, 1, 2, now=S) == []
    assert arrive(scheduler, 3, now=S + 2) == [[1, 2, 3]]
    (unit,) = scheduler.units.values()
    assert (unit.size, unit.reason) == (3, "table")
    assert arrive(scheduler, 4, 5, now=S + 3) == []
    assert finish(scheduler, unit, S + 4 * MS).start == []  # the device is free, two rows wait
    assert arrive(scheduler, 6, now=S + 5 * MS) == [[4, 5, 6]]


def test_line_and_not_the_table_is_scanned() -> None:
    """K2: three rows take longer than four here; the line through 5, 10, 15 and 10 ms knows nothing of it.

    Slope 2 ms a row and 5 ms at none, so 2 rows take 9 ms, 3 take 11, 4 take 13.
    """
    scheduler = preferring((5 * MS, 10 * MS, 15 * MS, 10 * MS))
    line = scheduler.states[1].estimates.line
    assert (line.alpha, line.beta) == pytest.approx((5 * MS, 2 * MS))
    scheduler.refused(1, 250, 0)  # 3 rows in 11 ms are 272.7 a second; in the table's 15 ms they would be 200
    scheduler.tick(S)
    assert scheduler.states[1].estimates.preferred == 3


@pytest.mark.parametrize(
    ("preferred", "ready", "limit", "now", "expected"),
    [
        pytest.param(4, 3, 8, 149, Hold(150), id="too-few"),
        pytest.param(4, 3, 8, 150, Cut(3, 3, "hold_ended"), id="bound"),
        pytest.param(4, 4, 8, 100, Cut(4, 4, "table"), id="gathered"),
        pytest.param(4, 30, 8, 1_000, Cut(4, 4, "table"), id="backlog-beyond-the-bound"),
        pytest.param(4, 30, 2, 100, Cut(2, 2, "table"), id="small-worker"),
        pytest.param(20, 8, 8, 100, Cut(8, 8, "full"), id="largest-batch"),
        pytest.param(1, 3, 8, 100, Cut(1, 1, "table"), id="before-the-first-tick"),
    ],
)
def test_policy(preferred: int, ready: int, limit: int, now: int, expected: Cut | Hold) -> None:
    known = estimates_of(preferred=preferred)
    first, later = (
        offer_of(ready, limit, 8, (limit,), known, oldest_at=100, max_delay=50, stage=stage) for stage in (0, 1)
    )
    assert policy_class("preferred")().decide(first, now) == expected
    assert policy_class("preferred")().decide(later, now) == cut_rows(later, ready, Formed.TABLE)


# Late Batching point by point: L1 to L3 and L6, as far as they are the scheduler's, and the worked example.


T = 1_000
CELL = Stage(Profile((T,) * 4), repeats=True)
#: Requests 6 to 9 are the batch that runs at first; one of them leaves at 102, the others at 105.
FIGURE_1 = [
    *(Request(98 * T, steps, steps) for steps in (4, 7, 7, 7)),
    *(Request(at * T, steps, steps) for at, steps in ((100, 3), (101, 5), (101, 7), (101, 2))),
]


def late(
    *requests: Request, stages: tuple[Stage, ...] = (CELL,), workers: int = 1, multi_step: bool = False,
    policy: str = "late", **options: object,
) -> Ran:  # fmt: skip
    program = make_program(stages=stages, policy=policy, max_batch=4, **options)
    return drive(make_device(*[4] * workers, multi_step=multi_step), program, requests)


@pytest.mark.parametrize("policy", ["late", "adaptive"])
@pytest.mark.parametrize("multi_step", [False, True], ids=["by-step", "by-itself"])
def test_figure_1_request_10_joins_at_102_and_returns_at_105(multi_step: bool, policy: str) -> None:
    """The drawing itself is not in the paper's text: lengths are such that all that the text says of it holds.

    A worker that makes steps by itself ends a full batch where a row of it ends: another waits for the place.
    """
    ran = late(*FIGURE_1, multi_step=multi_step, policy=policy)
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
