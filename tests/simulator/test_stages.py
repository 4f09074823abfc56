"""Programs of several stages, cells and rows of a length in virtual time, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tiers import full

from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse
from planner.fleet import Setup, run
from planner.profile_times import peak_at
from planner.simulated_front import FrontCosts

from .runs import MS, latencies, simulated

CELL = parse({"max_batch": 2, "stages": [{"batch_ms": {"1": 1, "2": 1}, "cell": True}]})
FOUR = parse({"max_batch": 4, "stages": [{"batch_ms": {"1": 1, "4": 1}}] * 4})
WRITER = parse({"max_batch": 2, "stages": [
    {"length_ms": {"10": {"1": 1, "2": 1}, "20": {"1": 2, "2": 4}}}, {"batch_ms": {"1": 1, "2": 1}, "cell": True},
]})  # fmt: skip
SLOW = parse({"max_batch": 2, "stages": [
    {"length_ms": {"10": {"1": 10, "2": 20}, "20": {"1": 20, "2": 40}}}, {"batch_ms": {"1": 10, "2": 10}, "cell": True},
]})  # fmt: skip
LONG = parse({"length_ms": {"10": {"1": 1, "4": 1}, "20": {"1": 2, "4": 4}}})


def by_length(profile: Profile, times_ms: list[int], *rows: list[int], **options: Any) -> list[float]:
    """Milliseconds of each request, in the order of its answer."""
    return latencies(profile, times_ms, *rows, lengths="fixed:1", **options)[0]


def written(profile: Profile, times_ms: list[int], prompts: list[int], texts: list[int]) -> list[float]:
    """The same of a decoder, by what each request reads and writes."""
    return by_length(profile, times_ms, prompts, texts, prompts="fixed:1")


def test_rows_join_a_cell_at_the_next_step_and_leave_when_they_end() -> None:
    """Two rows of three steps and one; a third joins when the short one has left."""
    assert by_length(CELL, [0, 0, 0], [3, 1, 2]) == [1, 3, 3]


def test_a_worker_runs_all_steps_by_itself_until_rows_join() -> None:
    """A hand-over takes 1 ms, the loop 2 ms before a unit and 2 behind it: three steps cost that once. A row that comes
    during the first step joins after it: the loop is told, and starts another unit."""
    handed = replace(CELL, handover_ns=MS)
    front = FrontCosts(batch_ns=4 * MS)
    assert by_length(handed, [0], [3]) == [1 + 3]
    assert by_length(handed, [0], [3], front=front) == [2 + 1 + 3 + 2]
    assert by_length(handed, [0, 3], [3, 1], front=front) == [2 + 1 + 1 + 2 + 2 + 1 + 1 + 2 - 3, 14]


def test_prompts_of_other_lengths_are_read_apart_and_answered_by_as_many_steps_as_the_text_is_long() -> None:
    assert written(WRITER, [0, 0], [20, 10], [1, 3]) == [2 + 1 + 1, 2 + 1 + 3]
    assert written(WRITER, [0], [10], [3]) == [1 + 3]


def test_prompts_of_about_one_length_are_read_together() -> None:
    assert written(WRITER, [0, 0], [20, 19], [1, 2]) == [4 + 1, 4 + 2]


def test_a_long_prompt_holds_up_a_step_for_50_ms_at_most() -> None:
    """It comes while the first of 6 steps runs, and takes 120 ms: 50 before each of the next two, and the rest."""
    assert written(SLOW, [0, 31], [30, 120], [6, 1]) == [30 + 4 * 10 + 120 - 31, 30 + 6 * 10 + 120]


def test_a_step_takes_longer_the_more_a_row_has_read_and_written() -> None:
    """A step takes 0.1 ms for each token: 10 that were read, and what has been written since."""
    steps = parse({"length_ms": {"10": {"1": 1, "2": 1}, "20": {"1": 2, "2": 2}}, "cell": True})
    profile = replace(WRITER, stages=(WRITER.stages[0], steps))
    assert written(profile, [0], [10], [3]) == pytest.approx([1 + 1 + 1.1 + 1.2])
    assert peak_at(profile, 10, 4) == pytest.approx(2 / (1 + 4 * 1.2) * 1e3)


def test_a_load_of_one_counts_reading_and_writing() -> None:
    setup = Setup(WRITER, 1.0, prompts="fixed:20", lengths="fixed:3")
    assert setup.peak == pytest.approx(max(1 / (2 + 3), 2 / (4 + 3)) * 1e3)


def test_a_batch_takes_the_time_of_its_longest_row() -> None:
    assert by_length(LONG, [0, 0], [10, 15]) == pytest.approx([11 / 6] * 2, abs=1e-5)  # between 1 and 8/3
    assert by_length(LONG, [0, 0, 0], [15, 10, 20]) == pytest.approx([10 / 3] * 3, abs=1e-5)
    apart = by_length(LONG, [0, 0, 0], [15, 10, 20], length_buckets=(10,))
    assert apart == pytest.approx([8 / 3, 8 / 3, 8 / 3 + 1], abs=1e-5)


@pytest.mark.parametrize(("one_step", "mean"), [(True, 5.25), (False, 6.25)])
def test_dvabatchs_third_example_needs_one_step_for_an_end_and_an_arrival(one_step: bool, mean: float) -> None:
    """Rows that come as the first stage ends join there; with a step for the end alone it has gone on by then."""
    setup = Setup(FOUR, 1, policy="dva_load", max_delay_ns=4 * MS, complete_wait=1.0)
    tally = simulated(setup, None, [0, *[5 * MS] * 3], one_step=one_step)
    assert tally.total_ns / tally.completed / MS == mean


@full
def test_replicas_that_are_simulated_apart_see_the_lengths_of_their_requests() -> None:
    """The same answer however many processes share the replicas, and for one replica the stream's own lengths."""
    setup = Setup(CELL, 300, requests=500, lengths="uniform:1:9", replicas=3, router="round_robin")
    cell = run(setup)
    assert cell["completed"] == 500
    assert cell["load"] == pytest.approx(300 / 3 / (2 / 0.005), rel=0.01)
    assert run(replace(setup, router="least_waiting"))["completed"] == 500
    texts = replace(setup, profile=WRITER, prompts="uniform:10:20", rate=100)
    assert run(texts)["mean_ms"] == run(texts, processes=1)["mean_ms"] > run(replace(texts, lengths="1"))["mean_ms"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, "lengths: the profile has a cell"),
        ({"lengths": "short"}, "lengths: expected a number"),
        ({"prompts": "fixed:2"}, "lengths: the profile has a cell"),
        ({"profile": WRITER, "lengths": "fixed:2", "prompts": "fixed:0"}, "prompts: expected whole numbers"),
        ({"profile": WRITER, "lengths": "fixed:3", "prompts": "many"}, "prompts: expected a number"),
        ({"profile": LONG, "prompts": "fixed:2"}, "prompts: expected a profile of a stage that reads"),
    ],
)
def test_what_is_missing_is_said(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        replace(Setup(CELL, 1.0), **change).check()  # type: ignore[arg-type]


Times = tuple[int, ...]  # of a stage by rows, in ns
FLAT = (8 * MS,) * 8
STEEP = tuple(rows * MS for rows in range(1, 9))
UNEVEN = tuple(round(ms * MS) for ms in (2.36, 4.85, 7.11, 4.67, 5.7, 5.67, 6.47, 5.91))  # half of a measured `mlp`
#: Times of two stages, and the least mean latency of any policy at 0.6 of their peak, in ms. It is the
#: solution of the decision process of both queues, which took minutes; simulated on 5,000 requests.
OPTIMA = [(FLAT, STEEP, 16.63), (STEEP, FLAT, 15.22), (UNEVEN, UNEVEN, 15.03)]


@full
@pytest.mark.parametrize(("first", "second", "least_ms"), OPTIMA, ids=["flat, steep", "steep, flat", "uneven"])
def test_adaptive_is_near_the_optimum_of_two_stages(first: Times, second: Times, least_ms: float) -> None:
    whole = tuple(map(sum, zip(first, second, strict=True)))
    profile = Profile(whole, stages=(Profile(first), Profile(second)))

    def mean_ms(policy: str) -> float:
        return run(Setup(profile, 0.6 * profile.peak, policy, requests=5_000, max_queue=1 << 20))["mean_ms"]

    assert 0.97 * least_ms < mean_ms("adaptive") < 1.04 * least_ms < 1.08 * least_ms < mean_ms("no_wait")
