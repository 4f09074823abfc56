"""The smooth curve through noisy times, and times by length."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tiers import few

from app.scheduler.estimates.lengths import LengthTimes, any_length, by_tokens, rounded, time_at
from app.scheduler.estimates.smooth import ONCE, Estimate, drawn, smoothed

# The smooth curve: bumps that are significant survive, others vanish.


SIZES = range(1, 33)
LINE = {size: 1e6 * (7 + 0.6 * size) for size in SIZES}


def test_sizes_that_are_too_quick_weigh_no_more_than_those_that_are_too_slow() -> None:
    known = {size: Estimate(ns * (1.4 if size % 2 else 0.6), 0.4) for size, ns in LINE.items()}
    found = smoothed(known)
    assert all(abs(found[size] / ns - 1) < 0.15 for size, ns in LINE.items()), found


def test_a_bump_within_its_error_vanishes_and_a_significant_one_stays() -> None:
    lucky = {size: Estimate(ns * (0.8 if size == 19 else 1), 0.15) for size, ns in LINE.items()}
    assert drawn(lucky)[19] == pytest.approx(LINE[19], rel=0.02)
    known = {size: Estimate(one.ns, 0.01) for size, one in lucky.items()}
    assert drawn(known)[19] == pytest.approx(0.8 * LINE[19], rel=0.01)


def test_a_curve_that_is_jagged_keeps_its_shape_before_any_size_is_significant() -> None:
    """As sizes that fill a processor's vectors are quicker; but noise of the same size on a line is levelled."""
    jagged = {size: ns * (0.96 if size % 2 == 0 else 1.04) for size, ns in LINE.items()}
    spread = {"jagged": jagged, "line": LINE}
    off = dict.fromkeys(spread, 0.0)
    for seed in range(few(40)):
        noise = random.Random(seed)
        for name, times in spread.items():
            found = drawn({size: Estimate(ns * (1 + noise.gauss(0, 0.02)), 0.02) for size, ns in times.items()})
            off[name] += sum((found[size] / ns - 1) ** 2 for size, ns in times.items()) / len(SIZES) / few(40)
    assert off["jagged"] < 0.022**2  # levelled it would be 0.04
    assert off["line"] < 0.011**2


def test_where_evidence_is_weak_more_rows_never_take_less_time() -> None:
    fell = {size: Estimate(ns * (1 - 0.03 * max(0, size - 10)), 0.3) for size, ns in LINE.items()}
    found = list(drawn(fell).values())
    assert found == sorted(found)
    assert found[0] < found[-1]


def test_a_line_through_sizes_of_which_one_counts_has_no_slope() -> None:
    """What the others weigh is no more than rounding."""
    known = {size: Estimate(90.0 + size**2, 1e-9 if size == 26 else 1e9) for size in range(20, 33)}
    assert list(smoothed(known).values()) == pytest.approx([766.0] * 13)


def test_few_sizes_are_left_as_they_were_measured() -> None:
    """But what was measured once counts as at most as slow as a larger size."""
    assert drawn({1: Estimate(5.0, 0.1), 2: Estimate(3.0, ONCE)}) == {1: 5.0, 2: 3.0}
    assert drawn({1: Estimate(5.0, ONCE), 2: Estimate(3.0, ONCE), 4: Estimate(4.0, ONCE)}) == {1: 3.0, 2: 3.0, 4: 4.0}
    assert drawn({}) == {}


# T(b, length) between, below and beyond the lengths measured.


TIMES = ((10, (10, 20)), (30, (30, 60)), (40, (35, 80)))


@pytest.mark.parametrize(
    ("length", "expected"), [(1, 20), (10, 20), (11, 22), (20, 40), (30, 60), (35, 70), (40, 80), (80, 160)]
)
def test_time_by_length(length: int, expected: float) -> None:
    assert time_at(TIMES, 2, length) == pytest.approx(expected)


def test_time_beyond_the_largest_batch() -> None:
    assert time_at(TIMES, 4, 20) == pytest.approx(80)
    assert time_at(((8, (5,)),), 3, 8) == 15


class TestLengthTimes:
    def test_stages_add_up_and_are_made_monotone(self) -> None:
        """Three rows are faster as four; the other stage takes as long for any length."""
        times = LengthTimes([((10, (10, 20, 40, 24)),), any_length((1, 2, 3, 4))], 4, extra_ns=5)
        at = times.at(10)
        assert at.times == (16, 27, 33, 33)
        assert at.sizes == (1, 2, 4, 4)
        assert at.least == pytest.approx((16, 13.5, 11, 8.25))
        assert at.best == (1, 2, 3, 4)
        assert times.at(20).times[0] == 5 + 20 + 1

    def test_lengths_are_rounded_up_by_little(self) -> None:
        assert [rounded(length) for length in (0, 1, 63, 64, 65, 129, 1000)] == [0, 1, 63, 64, 66, 132, 1008]
        assert all(length <= rounded(length) <= length * 33 / 32 for length in range(1, 20_000, 7))
        assert len({rounded(length) for length in range(1, 1 << 14)}) < 400


def test_as_many_tokens_are_guessed_to_take_as_long() -> None:
    guessed = by_tokens(16, 40, (10, 14, 16))
    assert guessed == (
        (1, (10, 10, 10)), (2, (10, 10, 10)), (4, (10, 10, 10)), (8, (10, 10, 12)), (16, (10, 14, 16)),
        (32, (14, 21, 32)), (40, (15, 27, 40)),
    )  # fmt: skip
    assert by_tokens(0, 40, (10, 14)) == ()


@pytest.mark.parametrize("sizes", [range(1, 33), (1, 2, 4, 8, 16, 32), (1, 2, 3)], ids=["all", "powers", "few"])
def test_one_slow_run_of_a_size_that_was_measured_once_shows_nothing(sizes: Sequence[int]) -> None:
    times = {size: 5.0 + size for size in sizes}
    measured = {**times, sizes[1]: 8 * times[sizes[1]]}
    spiked = drawn({size: Estimate(ns, ONCE) for size, ns in measured.items()})
    larger = times[sizes[2]]
    assert times[sizes[0]] <= spiked[sizes[1]] <= 1.02 * larger
    assert [spiked[size] for size in sizes[2:]] == pytest.approx([times[size] for size in sizes[2:]], rel=0.02)
