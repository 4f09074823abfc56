"""A profile is read or refused with the name of the key at fault; what was not measured lies between what was."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import repeatable

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import Profile, interpolate
from app.scheduler.estimates.profile_format import parse, to_dict
from planner.profile_times import at_length, linear, occupied_ns, peak_at

EXAMPLES = repeatable(100)
FULL: dict[str, Any] = {
    "model": "mlp",
    "device": "cpu",
    "threads": 1,
    "max_batch": 4,
    "batch_ms": {"1": 1.0, "2": 1.5, "3": 2.5, "4": 2.0},
    "concurrency": {"2": {"1": 1.5, "4": 3.0}},
    "handover_ms": 0.25,
}


def test_all_keys() -> None:
    profile = parse(FULL)
    assert (profile.model, profile.device, profile.threads, profile.max_batch) == ("mlp", "cpu", 1, 4)
    assert profile.batch_ns == (1_000_000, 1_500_000, 2_500_000, 2_000_000)
    assert profile.concurrency_ns == {2: (1_500_000, 2_000_000, 2_500_000, 3_000_000)}
    assert [profile.times_of(units) for units in (1, 2, 9)] == [profile.batch_ns, *[profile.concurrency_ns[2]] * 2]
    assert (profile.best, profile.peak) == (4, 2000)  # of computing alone
    assert occupied_ns(profile) == (1_250_000, 1_750_000, 2_750_000, 2_250_000)


def test_cut_to_a_smaller_batch() -> None:
    """All tables end at the same size."""
    cut = parse(FULL).up_to(2)
    assert (cut.batch_ns, cut.concurrency_ns) == ((1_000_000, 1_500_000), {2: (1_500_000, 2_000_000)})
    assert cut.handover_ns == 250_000
    assert parse(to_dict(cut)) == cut
    with pytest.raises(ValueError, match="max_batch: expected 1 to 4"):
        parse(FULL).up_to(5)


def test_a_size_that_was_not_measured_is_known_no_better_than_the_nearest_that_was() -> None:
    batch_ms = {"1": 1, "4": 4, "7": 7}
    assert parse({"batch_ms": batch_ms, "error": {"1": 0.3, "7": 0.02}}).errors == (0.3, 0.3, 0.3, 0.3, 0.1, 0.1, 0.02)


def test_each_stage_is_handed_over() -> None:
    stages = [{"batch_ms": {"1": 2}}, {"batch_ms": {"1": 1}}]
    profile = parse({"stages": stages, "handover_ms": 0.1})
    assert [stage.handover_ns for stage in profile.of_stages()] == [100_000, 100_000]
    assert occupied_ns(profile) == (3_200_000,)
    assert parse(to_dict(profile)) == profile
    assert [stage.handover_ns for stage in parse({"stages": stages}).of_stages()] == [None, None]


def test_unknown_keys_are_kept() -> None:
    data = {**FULL, "torch": "2.13", "notes": [1], "power_w": {"idle": 1, "busy": 2, "sensor": "rapl"}}
    kept = to_dict(parse(data))
    assert (kept["torch"], kept["notes"], kept["power_w"]["sensor"]) == ("2.13", [1], "rapl")


def test_times_between_the_numbers_at_once_that_were_measured() -> None:
    profile = Profile((10, 20), concurrency_ns={2: (20, 30), 4: (40, 70)})
    assert [profile.times(units) for units in (1, 2, 3, 4)] == [(10, 20), (20, 30), (30, 50), (40, 70)]
    for units in (0, 5):
        with pytest.raises(ValueError, match="concurrency: expected 1 to 4 units"):
            profile.times(units)
    assert profile.times_of(9) == (40, 70)
    assert Profile((10,)).times_of(4) == (10,)


def test_a_fit_has_no_slope_from_one_size_and_tells_how_far_off_it_is() -> None:
    assert Profile((7_000_000,)).fit == {"alpha_ms": 7, "beta_ms": 0, "residual": 0}
    assert Profile((10, 20, 10, 20)).fit["residual"] == pytest.approx(0.298, abs=1e-3)


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ([], "profile: expected a valid dictionary, got "),
        ({"batch_ms": {}}, "batch_ms: expected the times of batches by size, got nothing"),
        ({"batch_ms": {"2": 1, "4": 1}}, "batch_ms.1: expected a time for 1 row, got nothing"),
        ({"batch_ms": {"1": 1, "8": 1}}, "batch_ms.4: expected a time for 4 rows, got nothing"),
        ({"batch_ms": {"1": 1, "4": 1, "8": 1}}, "batch_ms.8: expected sizes up to max_batch, 4"),
        ({"batch_ms": {"1": True, "4": 1}}, "batch_ms.1: expected a valid number, got True"),
        ({"concurrency": {"2": {"1": 1}}}, "concurrency.2.4: expected a time for 4 rows, got nothing"),
        ({"concurrency": {"1": {"1": 1, "4": 1}}}, "concurrency.1.[key]: expected greater than or equal to 2, got '1'"),
        ({"error": {"1": -1}}, "error.1: expected greater than or equal to 0, got -1"),
        ({"stages": [{"batch_ms": {"1": 1}}]}, "stages.0.batch_ms.4: expected a time for 4 rows, got nothing"),
        ({"stages": [{"stages": [1]}]}, "stages.0.stages: List should have at most 0 items"),
        ({"threads": 0}, "threads: expected greater than or equal to 1, got 0"),
    ],
)
def test_a_wrong_key_is_named(changed: Any, fault: str) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        parse({**FULL, **changed} if changed else changed)


@pytest.mark.parametrize("huge", [1e308, 10**400, float("inf"), float("nan")])
def test_a_time_that_is_no_number_of_nanoseconds_is_refused(huge: float) -> None:
    """A stored file with one is measured again; on the command line it is one line."""
    for key, value in (("handover_ms", huge), ("batch_ms", {"1": 1.0, "4": huge})):
        with pytest.raises(ValueError, match=rf"^{key}[.\d]*: expected .*, got"):
            parse({**FULL, key: value})
    if isinstance(huge, float):
        for parts in ((huge, 1.0), (1.0, huge)):
            with pytest.raises(ValueError, match=r"^linear: expected a time above 0"):
                linear(*parts, 4)


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
    at = at_length(profile, 20)
    assert at.batch_ns == (5_000_000, 8_000_000)
    assert occupied_ns(at) == (15_500_000, 18_500_000)
    assert at.peak == peak_at(profile, 20)


def test_interpolation_keeps_what_is_known_and_stays_within_it() -> None:
    known = {1: 10, 3: 20, 7: 0}
    assert interpolate(known, range(1, 8)) == [10, 15, 20, 15, 10, 5, 0]
    for beyond in (0, 8):
        with pytest.raises(ValueError, match=f"expected points from 1 to 7, got {beyond}"):
            interpolate(known, [beyond])


@EXAMPLES
@given(st.floats(0.1, 100), st.floats(0, 10), st.integers(2, 64))
def test_a_line_is_fitted_by_itself(fixed: float, row: float, max_batch: int) -> None:
    fit = linear(fixed, row, max_batch).fit
    assert (fit["alpha_ms"], fit["beta_ms"]) == pytest.approx((fixed, row), abs=1e-5)
    assert fit["residual"] < 1e-4
