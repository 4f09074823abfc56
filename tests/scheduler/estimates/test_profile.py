"""A profile is read or refused with the name of the key at fault; what was not measured lies between what was."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import few

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import ModelProfile, fit, linear, parse
from app.scheduler.types import Profile

EXAMPLES = settings(max_examples=few(100))
FULL: dict[str, Any] = {
    "model": "mlp",
    "device": "cpu",
    "threads": 1,
    "max_batch": 4,
    "batch_ms": {"1": 1.0, "2": 1.5, "3": 2.5, "4": 2.0},
    "concurrency": {"2": {"1": 1.5, "4": 3.0}},
    "handover_ms": 0.25,
    "transfer_ms": {"1": 0.0, "3": 0.5, "4": 1.0},
    "power_w": {"idle": 10.0, "busy": 60.0},
}


def test_all_keys() -> None:
    profile = parse(FULL)
    assert (profile.model, profile.device, profile.threads, profile.max_batch) == ("mlp", "cpu", 1, 4)
    assert profile.batch_ns == (1_000_000, 1_500_000, 2_500_000, 2_000_000)
    assert profile.concurrency_ns == {2: (1_500_000, 2_000_000, 2_500_000, 3_000_000)}
    assert profile.power is not None
    assert (profile.power.idle, profile.power.busy) == (10.0, 60.0)
    together = ((1_500_000, 2_000_000, 2_500_000, 3_000_000),)
    assert profile.stage() == Profile(profile.batch_ns, together, handover_ns=250_000)
    assert profile.peak == 2000  # of computing alone
    assert profile.occupied_ns == (1_250_000, 1_750_000, 2_750_000, 2_250_000)
    assert profile.transfer_ns == (0, 250_000, 500_000, 1_000_000)


def test_cut_to_a_smaller_batch() -> None:
    """All tables end at the same size."""
    cut = parse(FULL).up_to(2)
    assert (cut.batch_ns, cut.concurrency_ns) == ((1_000_000, 1_500_000), {2: (1_500_000, 2_000_000)})
    assert (cut.transfer_ns, cut.handover_ns) == ((0, 250_000), 250_000)
    assert cut.power == parse(FULL).power
    assert parse(cut.to_dict()) == cut


def test_only_times_are_needed() -> None:
    profile = parse({"batch_ms": {"1": 2}})
    assert (profile.max_batch, profile.batch_ns, profile.power) == (1, (2_000_000,), None)
    assert parse(profile.to_dict()) == profile


def test_each_stage_is_handed_over() -> None:
    stages = [{"batch_ms": {"1": 2}}, {"batch_ms": {"1": 1}}]
    profile = parse({"stages": stages, "handover_ms": 0.1})
    assert [stage.profile.handover_ns for stage in profile.program_stages()] == [100_000, 100_000]
    assert profile.occupied_ns == (3_200_000,)
    assert parse(profile.to_dict()) == profile
    assert [stage.profile.handover_ns for stage in parse({"stages": stages}).program_stages()] == [None, None]


def test_a_hand_over_that_was_not_measured_counts_as_nothing_and_is_not_written() -> None:
    """Files from before it was measured read as they did; one that was measured as nothing says so."""
    profile = parse({"batch_ms": {"1": 2}})
    assert (profile.handover_ns, profile.stage().handover_ns, profile.occupied_ns) == (None, None, (2_000_000,))
    assert "handover_ms" not in profile.to_dict()
    assert parse({"batch_ms": {"1": 2}, "handover_ms": 0}).to_dict()["handover_ms"] == 0


def test_sizes_left_out_are_interpolated() -> None:
    profile = parse({"batch_ms": {"8": 9.0, "1": 4, "4": 10.0}})
    assert [time / 1e6 for time in profile.batch_ns] == [4, 6, 8, 10, 9.75, 9.5, 9.25, 9]


def test_unknown_keys_are_kept() -> None:
    data = {**FULL, "torch": "2.13", "notes": [1], "power_w": {"idle": 1, "busy": 2, "sensor": "rapl"}}
    kept = parse(data).to_dict()
    assert (kept["torch"], kept["notes"], kept["power_w"]["sensor"]) == ("2.13", [1], "rapl")


@EXAMPLES
@given(
    st.lists(st.integers(1, 10**12), min_size=1, max_size=40),
    st.one_of(st.none(), st.integers(1, 64)),
    st.dictionaries(st.sampled_from(["a", "b"]), st.integers(), max_size=2),
)
def test_written_and_read_again(times: list[int], threads: int | None, extra: dict[str, int]) -> None:
    data = {**extra, "batch_ms": {str(size): time / 1e6 for size, time in enumerate(times, 1)}}
    if threads is not None:
        data["threads"] = threads
    profile = parse(data)
    assert list(profile.batch_ns) == times
    assert parse(json.loads(json.dumps(profile.to_dict()))) == profile


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_ms": None}, "batch_ms: expected times"),
        ({"batch_ms": {}}, "batch_ms: expected times"),
        ({"batch_ms": {"2": 1, "4": 1}}, "batch_ms.1: expected a time for 1 row, got nothing"),
        ({"batch_ms": {"1": 1, "2": 1}}, "batch_ms.4: expected a time for 4 rows"),
        ({"batch_ms": {"1": 1, "4": 1, "8": 2}}, "batch_ms.8: expected sizes up to max_batch, 4"),
        ({"batch_ms": {"1": 1, "4": 0}}, "batch_ms.4: expected milliseconds above 0"),
        ({"batch_ms": {"1": 1, "4": "2"}}, "batch_ms.4: expected a number"),
        ({"batch_ms": {"1": 1, "4": float("nan")}}, "batch_ms.4: expected a number"),
        ({"batch_ms": {"1": True, "4": 1}}, "batch_ms.1: expected a number"),
        ({"batch_ms": {"one": 1}}, "batch_ms.one: expected a whole number"),
        ({"batch_ms": {"0": 1}}, "batch_ms.0: expected a whole number"),
        ({"max_batch": 1.5}, "max_batch: expected a whole number"),
        ({"max_batch": 10**9}, "max_batch: expected a whole number"),
        ({"threads": 0}, "threads: expected a whole number"),
        ({"model": 7}, "model: expected a text"),
        ({"concurrency": []}, "concurrency: expected"),
        ({"concurrency": {"1": {"1": 1}}}, "concurrency.1: expected at least 2"),
        ({"concurrency": {"2": {"1": 1}}}, "concurrency.2.4: expected a time"),
        ({"concurrency": {"2": {"1": 1, "4": -1}}}, "concurrency.2.4: expected milliseconds above 0"),
        ({"transfer_ms": 3}, "transfer_ms: expected times by batch size, got 3"),
        ({"transfer_ms": {}}, "transfer_ms: expected times"),
        ({"transfer_ms": {"1": 1, "4": -1}}, "transfer_ms.4: expected milliseconds of at least 0, got -1"),
        ({"transfer_ms": {"1": True, "4": 1}}, "transfer_ms.1: expected a number"),
        ({"transfer_ms": {"2": 1, "4": 1}}, "transfer_ms.1: expected a time for 1 row"),
        ({"transfer_ms": {"1": 1, "2": 1}}, "transfer_ms.4: expected a time for 4 rows"),
        ({"handover_ms": -0.1}, "handover_ms: expected milliseconds of at least 0, got -0.1"),
        ({"handover_ms": {"1": 1}}, "handover_ms: expected a number"),
        ({"power_w": 5}, "power_w: expected idle and busy"),
        ({"power_w": {"idle": 5}}, "power_w.busy: expected watts, got nothing"),
        ({"power_w": {"idle": -5, "busy": 1}}, "power_w.idle: expected at least 0"),
        ({"length_ms": 3}, "length_ms: expected batch times by length"),
        ({"length_ms": {"x": {"1": 1, "4": 1}}}, "length_ms.x: expected a whole number"),
        ({"length_ms": {"8": {"1": 1, "2": 1}}}, "length_ms.8.4: expected a time for 4 rows"),
        ({"cell": 1}, "cell: expected true or false"),
        ({"stages": "ab"}, "stages: expected a list of profiles"),
        ({"stages": [{"batch_ms": {"1": 1}}]}, "stages.0.batch_ms.4: expected a time for 4 rows"),
        ({"stages": [{"batch_ms": {"1": 1}, "max_batch": 1}]}, "stages.0: expected times up to the largest batch, 4"),
        ({"stages": [{"stages": [{"batch_ms": {"1": 1, "4": 1}}]}]}, "stages.0.stages: expected none"),
    ],
)
def test_the_key_at_fault_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        parse({**FULL, **change})


STAGES = [{"batch_ms": {"1": 1, "4": 4}}, {"batch_ms": {"1": 2, "4": 2}, "cell": True}]


def test_stages_and_lengths() -> None:
    """Times of the whole that are left out: the sum of the stages', or those of the longest rows."""
    profile = parse({"max_batch": 4, "stages": STAGES})
    assert profile.batch_ns == (3_000_000, 4_000_000, 5_000_000, 6_000_000)
    assert [stage.repeats for stage in profile.program_stages()] == [False, True]
    assert profile.program_stages()[1].profile == Profile((2_000_000,) * 4)
    long = parse({"length_ms": {"30": {"1": 3, "4": 6}, "10": {"1": 1, "4": 2}}})
    assert long.batch_ns == (3_000_000, 4_000_000, 5_000_000, 6_000_000)
    assert [long.time(4, length) / 1e6 for length in (0, 10, 15)] == [6, 2, 3]
    for one in (profile, long):
        assert parse(one.to_dict()) == one
        assert parse(one.up_to(2).to_dict()) == one.up_to(2)
    assert parse({**FULL, "stages": STAGES}).batch_ns == parse(FULL).batch_ns  # what was measured of the whole


def test_rows_a_second_at_a_length() -> None:
    """A cell runs as many steps as the row is long."""
    assert parse({"max_batch": 4, "stages": STAGES}).peak_at(10) == pytest.approx(4 / (0.004 + 10 * 0.002))
    assert parse({"length_ms": {"10": {"1": 1, "2": 1}, "30": {"1": 3, "2": 3}}}).peak_at(20) == pytest.approx(1000)


def test_what_is_no_profile() -> None:
    with pytest.raises(ValueError, match="expected an object"):
        parse([1])
    with pytest.raises(ValueError, match="batch_ms: expected the times"):
        parse({})


def test_smaller_largest_batch() -> None:
    shorter = parse({**FULL, "extra": 1}).up_to(2)
    assert shorter.batch_ns == (1_000_000, 1_500_000)
    assert shorter.concurrency_ns == {2: (1_500_000, 2_000_000)}
    assert shorter.extra == {"extra": 1}
    with pytest.raises(ValueError, match="max_batch: expected 1 to 4"):
        parse(FULL).up_to(5)


def test_best_size() -> None:
    profile = parse(FULL)
    assert (profile.best, profile.peak) == (4, 2000)
    assert parse({"batch_ms": {"1": 1, "2": 2, "3": 3}}).best == 1  # the smallest of equals


def test_times_between_the_numbers_at_once_that_were_measured() -> None:
    profile = ModelProfile((10, 20), concurrency_ns={2: (20, 30), 4: (40, 70)})
    assert [profile.times(units) for units in (1, 2, 3, 4)] == [(10, 20), (20, 30), (30, 50), (40, 70)]
    for units in (0, 5):
        with pytest.raises(ValueError, match="concurrency: expected 1 to 4 units"):
            profile.times(units)
    assert profile.stage() == Profile((10, 20), ((20, 30), (30, 50), (40, 70)))
    assert profile.stage(2) == Profile((10, 20), ((20, 30),))
    assert profile.stage(9) == profile.stage()
    assert profile.stage(1) == Profile((10, 20))
    assert ModelProfile((10,)).stage(4) == Profile((10,))


@EXAMPLES
@given(st.floats(0.1, 100), st.floats(0, 10), st.integers(2, 64))
def test_a_line_is_fitted_by_itself(fixed: float, row: float, max_batch: int) -> None:
    line = linear(fixed, row, max_batch).fit()
    assert line.alpha_ns / 1e6 == pytest.approx(fixed, abs=1e-5)
    assert line.beta_ns / 1e6 == pytest.approx(row, abs=1e-5)
    assert line.residual < 1e-4


def test_a_fit_has_no_slope_from_one_size_and_tells_how_far_off_it_is() -> None:
    assert (fit([7]).alpha_ns, fit([7]).beta_ns, fit([7]).residual) == (7, 0, 0)
    assert fit([10, 20, 10, 20]).residual == pytest.approx(0.298, abs=1e-3)


def test_linear() -> None:
    assert linear(7, 0.6, 3).batch_ns == (7_600_000, 8_200_000, 8_800_000)
    assert linear(0, 1, 2).peak == 1000
    for fixed, row in ((0, 0), (-1, 2), (2, -0.1)):
        with pytest.raises(ValueError, match="linear"):
            linear(fixed, row, 4)


def test_padding_takes_the_fastest_larger_size() -> None:
    assert padded((5, 10, 14, 9, 12)) == ((5, 9, 9, 9, 12), (1, 4, 4, 4, 5))


@EXAMPLES
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_padded_curve_is_monotone_and_true(times: list[int]) -> None:
    least, sizes = padded(tuple(times))
    assert list(least) == sorted(least)
    for rows, (time, size) in enumerate(zip(least, sizes, strict=True), 1):
        assert size >= rows
        assert time == times[size - 1] == min(times[rows - 1 :])


def test_profile_of_rows_of_one_length() -> None:
    """Run whole: a cell's times are those of all its steps."""
    profile = parse(
        {
            "max_batch": 2,
            "handover_ms": 0.5,
            "stages": [
                {"batch_ms": {"1": 1, "2": 2}, "length_ms": {"10": {"1": 1, "2": 2}, "20": {"1": 3, "2": 4}}},
                {"batch_ms": {"1": 0.1, "2": 0.2}, "cell": True},
            ],
        }
    )
    at = profile.at(20)
    assert at.batch_ns == (5_000_000, 8_000_000)
    assert at.occupied_ns == (15_500_000, 18_500_000)
    assert at.peak == profile.peak_at(20)
