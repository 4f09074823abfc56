"""DVABatch point by point: D5 to D7 and D12 to D15, and the three worked examples of its Figure 3, exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from app.scheduler.estimates.profile import Profile
from app.scheduler.policies.dva import part_of
from app.scheduler.types import DeviceSpec, Operation, Stage

from ..driven import Ran, Request, drive
from ..world import Arrival, Trace, World, make_device, make_program

T = 8_000
WHOLE = Profile((4 * T,) * 4)
FOUR = (Stage(Profile((T,) * 4)),) * 4  # every operator takes T and prefers 4 rows
#: The same, and half as long for rows half as long.
LONG = (Stage(Profile((T,) * 4, by_length=((5, (T // 2,) * 4), (10, (T,) * 4)))),) * 4
#: Fixed and row times of stages that never end at one instant.
MANY = ((7_919, 1_009), (10_007, 23), (4_001, 2_003), (12_007, 47))
#: Operator A prefers 4 rows, the others 1.
MIXED = (FOUR[0], *(Stage(Profile(tuple(rows * T // 4 for rows in range(1, 5)))),) * 3)


def served(policy: str, stages: tuple[Stage, ...], *requests: Request, device: DeviceSpec | None = None,
           **options: object) -> Ran:  # fmt: skip
    program = make_program(stages=stages, policy=policy, **{"max_batch": 4, "max_delay_ns": 0, **options})
    return drive(device or make_device(4), program, requests, together=True)


def operations(ran: Ran) -> list[tuple[int, int, Operation]]:
    return [(unit.stage, len(unit.rows), unit.operation) for unit in ran.units]


def ends(policy: str, workers: int, arrivals: tuple[Arrival, ...], *, multi_step: bool) -> dict[int, int]:
    """When each call ended. `multi_step`: workers pass boundaries by themselves."""
    stages = tuple(Stage(Profile(tuple(base + rows * row for rows in range(1, 5)))) for base, row in MANY)
    buckets = (5, 10) if policy == "dva_input" else ()
    program = make_program(stages=stages, policy=policy, max_batch=4, max_delay_ns=2_000, length_buckets=buckets)
    return World(Trace(make_device(*[4] * workers, multi_step=multi_step), (program,), arrivals)).run().left


@pytest.mark.parametrize("workers", [2, 1, 3])
@pytest.mark.parametrize("policy", ["dva_input", "dva_operator", "dva_load"])
@repeatable(15)
@given(st.lists(st.tuples(st.integers(0, 60_000), st.sampled_from([4, 9])), min_size=1, max_size=12))
def test_workers_that_pass_boundaries_by_themselves_change_nothing(policy, workers, requests) -> None:
    """What the simulator shows, which runs units of one stage, is what a CPU does, whose units run several."""
    arrivals = tuple(Arrival(at=at * 17 + number, lengths=(length,)) for number, (at, length) in enumerate(requests))
    stage_by_stage, by_itself = (ends(policy, workers, arrivals, multi_step=multi_step) for multi_step in (False, True))
    assert by_itself == stage_by_stage


class TestFigure3:
    def test_case_1_input_diversity_37_5_percent(self) -> None:
        requests = [Request(0, length=length) for length in (5, 5, 5, 10)]
        whole = Stage(Profile((4 * T,) * 4, by_length=((5, (2 * T,) * 4), (10, (4 * T,) * 4))))
        assert served("no_wait", (whole,), *requests).mean == 4 * T
        ran = served("dva_input", LONG, *requests, device=make_device(4, 4), length_buckets=(5, 10))
        assert ran.latency == [2 * T, 2 * T, 2 * T, 4 * T]
        assert ran.mean == 2.5 * T == (1 - 0.375) * 4 * T

    def test_case_2_operator_diversity_28_1_percent(self) -> None:
        requests = [Request(0)] * 4
        assert served("no_wait", MIXED, *requests).mean == 4 * T
        ran = served("dva_operator", MIXED, *requests)
        assert [latency / T for latency in ran.latency] == [1.75, 2.5, 3.25, 4]
        assert ran.mean == 2.875 * T
        assert round(1 - ran.mean / (4 * T), 3) == 0.281

    def test_case_3_load_diversity_34_4_percent(self) -> None:
        requests = [Request(0), *[Request(5 * T)] * 3]
        assert served("window", (Stage(WHOLE),), *requests, max_delay_ns=4 * T).mean == 8 * T
        ran = served("dva_load", FOUR, *requests, max_delay_ns=4 * T)
        assert [latency / T for latency in ran.latency] == [9, 4, 4, 4]
        assert ran.mean == 5.25 * T
        assert round(1 - ran.mean / (8 * T), 3) == 0.344
        assert operations(ran) == [
            (0, 1, Operation.NEW), (0, 3, Operation.STRETCH), *((stage, 4, Operation.CONTINUE) for stage in (1, 2, 3)),
        ]  # fmt: skip


# D12.


def test_the_window_is_the_first_stage_at_the_largest_batch() -> None:
    """It begins with the batch before. The first batch has none, so it does not wait."""
    requests = [Request(0, length=5), Request(1, length=5), Request(T // 2 + 1, length=5)]
    ran = served("dva_input", LONG, *requests, device=make_device(4, 4), length_buckets=(5, 10))
    begun = [(unit.started, len(unit.rows)) for unit in ran.units if unit.stage == 0]
    assert begun == [(0, 1), (T, 2)]


# D7, D13.


@pytest.mark.parametrize(
    ("remaining", "parts"),
    [
        pytest.param((10, 10, 10, 10), [1, 2, 3, 4], id="batching-is-free"),
        pytest.param((10, 20, 30, 40), [1, 1, 1, 1], id="batching-brings-nothing"),
        pytest.param((10, 12, 20, 24), [1, 2, 3, 2], id="two-fill-it"),
        pytest.param((10, 20, 39, 39), [1, 1, 1, 4], id="equal-is-enough"),
        pytest.param((), [1, 2, 3, 4], id="nothing-is-known"),
    ],
)
def test_when_a_batch_is_split(remaining: tuple[int, ...], parts: list[int]) -> None:
    assert [part_of(rows, remaining) for rows in (1, 2, 3, 4)] == parts


# D6, D14, D7 with D6.


def test_an_old_batch_is_not_stretched() -> None:
    """Held twice, it is older than one row takes for all stages."""
    requests = [Request(0), Request(1), Request(T + 1), Request(2 * T + 1), Request(3 * T + 1)]
    ran = served("dva_load", (Stage(Profile((T,) * 8)),) * 3, *requests, max_batch=8)
    stretched = [unit.started for unit in ran.units if unit.operation is Operation.STRETCH]
    assert stretched == [T, 2 * T]
    assert max(stretched) < 3 * T
