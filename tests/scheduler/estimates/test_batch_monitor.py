"""The rate of the last window, the line of batch times, and the two preferred sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
import pytest
from tiers import full, some

from app.scheduler.estimates.batch_monitor import RateMonitor, Regression, algorithm_1, preferred_size
from app.scheduler.estimates.latency import Latency
from app.scheduler.estimates.profile import linear
from app.scheduler.types import Profile

SECOND, MS, LARGEST = 1_000_000_000, 1_000_000, 32
FORGET, PRIOR, ANCHOR = 0.98, 20.0, 0.25  # 50 batches count, 20 for the profile, a quarter of a row
PROFILE = linear(3, 0.35, LARGEST).batch_ns


def windows(*counts: int, length: int = SECOND) -> RateMonitor:
    monitor = RateMonitor(7)
    for number, count in enumerate(counts, 1):
        monitor.tick(7 + number * length, count)
    return monitor


class TestRate:
    @pytest.mark.parametrize(
        ("counts", "length", "rate"),
        [((), SECOND, 0), ((30,), SECOND, 30), ((30,), 2 * SECOND, 15), ((30,), SECOND // 2, 60), ((10, 0), SECOND, 0)],
    )
    def test_rows_of_the_last_window_over_its_true_length(self, counts: tuple[int, ...], length: int, rate: float):
        assert windows(*counts, length=length).rate == pytest.approx(rate)

    def test_a_window_of_no_length_is_not_closed(self) -> None:
        monitor = windows()
        monitor.tick(7, 10)
        assert monitor.rate == 0.0
        monitor.tick(7 + SECOND, 0)
        assert monitor.rate == pytest.approx(10.0)

    @pytest.mark.parametrize(
        ("counts", "steady"),
        [
            pytest.param((100,), 100, id="the-first-window"),
            pytest.param((100, 110, 90, 104), 101, id="the-mean-of-windows-that-differ-by-chance"),
            pytest.param((*[100] * 10, 200), 200, id="begins-anew-after-a-step-up"),
            pytest.param((100, 110, 60), 60, id="and-after-a-step-down"),
            pytest.param((100, 0), 0, id="silence"),
            pytest.param((0, 0, 7), 7, id="the-first-after-silence"),
        ],
    )
    def test_steady_is_the_mean_since_the_last_change(self, counts: tuple[int, ...], steady: float) -> None:
        assert windows(*counts).steady == pytest.approx(steady)
        assert windows(*counts).rate == pytest.approx(counts[-1])

    def test_steady_follows_what_changes_slowly(self) -> None:
        """One percent a second is never three deviations of a window, and is followed ten windows late."""
        counts = [round(100 * 1.01**second) for second in range(100)]
        assert windows(*counts).steady == pytest.approx(counts[-10], rel=0.03)

    @full
    @pytest.mark.parametrize("rate", [0.05, 1, 300])
    def test_steady_is_not_drawn_up_by_single_arrivals(self, rate: float) -> None:
        """Over thousands of windows of a Poisson process its mean is the rate, however few arrive in a window."""
        counts, monitor, means = np.random.default_rng(1).poisson(rate, 4_000).tolist(), RateMonitor(0), []
        for window, count in enumerate(counts, 1):
            monitor.tick(window * SECOND, count)
            means.append(monitor.steady)
        assert sum(means[20:]) / len(means[20:]) == pytest.approx(rate, rel=0.15)


def line_ms(regression: Regression) -> tuple[float, float]:
    """alpha and beta in milliseconds."""
    return regression.alpha / MS, regression.beta / MS


def observed(profile: Iterable[int], batches: Iterable[tuple[int, float]]) -> Regression:
    """After batches of (rows, milliseconds)."""
    regression = Regression(tuple(profile))
    for size, time_ms in batches:
        regression.observe(size, round(time_ms * MS))
    return regression


def noisy(fixed_ms: float, row_ms: float, count: int, *, seed: int = 1) -> list[tuple[int, float]]:
    """Batches of 1 to 32 rows, their times in error by 5 % each."""
    generator = random.Random(seed)
    sizes = [generator.randint(1, LARGEST) for _ in range(count)]
    return [(size, (fixed_ms + row_ms * size) * generator.gauss(1, 0.05)) for size in sizes]


class TestRegression:
    def test_nothing_seen_is_nothing_known(self) -> None:
        regression = Regression()
        assert not regression.known
        assert (regression.alpha, regression.beta, regression.residual, regression.predict(8)) == (0, 0, 0, 0)

    @pytest.mark.parametrize(
        ("profile", "expected"),
        [
            (PROFILE, (3, 0.35)),
            (linear(4, 0, 32).batch_ns, (4, 0)),
            ((5 * MS,), (5, 0)),
            ((9 * MS, 8 * MS, 7 * MS), (8, 0)),  # no slope below zero
            (bent := [int(ms * MS) for ms in (4.6, 9.5, 14.0, 10.0, 10.4, 10.9, 11.3, 11.7)],
             np.polyfit(range(1, 9), np.array(bent) / MS, 1)[::-1]),
        ],
        ids=["line", "flat", "one-size", "falling", "bent"],
    )  # fmt: skip
    def test_it_begins_as_the_line_of_the_profile(self, profile: tuple[int, ...], expected: tuple[float, float]):
        regression = Regression(profile)
        assert line_ms(regression) == pytest.approx(tuple(expected), abs=1e-6)
        left = np.array(profile) / MS - expected[0] - expected[1] * np.arange(1, len(profile) + 1)
        assert regression.residual / MS == pytest.approx(np.sqrt(np.mean(left**2)), abs=1e-6)

    @pytest.mark.parametrize("profile", [(), PROFILE], ids=["no-profile", "profile"])
    @pytest.mark.parametrize("count", some([60, 1, 400], 3))
    def test_batches_are_fitted_as_numpy_does(self, profile: tuple[int, ...], count: int) -> None:
        """Each batch is a weighted equation, and one draws the slope to that of the profile, scaled to the level seen.

        5 ms give or take a fifth, whatever the size, so that none is clipped."""
        generator = random.Random(count)
        seen = [(generator.randint(1, 32), generator.uniform(4, 6)) for _ in range(count)]
        regression = observed(profile, seen)
        weights = [PRIOR / len(profile) * FORGET**count for _ in profile] + [FORGET**i for i in reversed(range(count))]
        share = np.array(weights) / sum(weights)
        x, y = np.array([*((size, time / MS) for size, time in enumerate(profile, 1)), *seen]).T
        slope = 0.35 * (share @ y) / (3 + 0.35 * (share @ x)) if profile else 0.0
        left = np.stack([np.ones_like(x), x - share @ x], axis=1) * np.sqrt(share)[:, None]
        right = np.r_[y * np.sqrt(share), ANCHOR**0.5 * slope]
        centre, beta = np.linalg.lstsq(np.vstack([left, [0, ANCHOR**0.5]]), right, rcond=None)[0]
        assert regression.beta / MS == pytest.approx(max(0.0, beta), rel=1e-5, abs=1e-8)
        if beta > 0:
            assert regression.alpha / MS == pytest.approx(centre - beta * (share @ x), rel=1e-5)

    @pytest.mark.parametrize("profile", [(), PROFILE, linear(30, 0, 32).batch_ns], ids=["none", "true", "wrong"])
    @pytest.mark.parametrize(("fixed_ms", "row_ms"), some([(3, 0.35), (0.2, 3)], 2))
    def test_the_line_is_found_in_noise(self, profile: tuple[int, ...], fixed_ms: float, row_ms: float) -> None:
        regression = observed(profile, noisy(fixed_ms, row_ms, 400))
        for size in (4, 8, 16, 32):
            assert regression.predict(size) == pytest.approx((fixed_ms + row_ms * size) * MS, rel=0.05)
        mean = (fixed_ms + row_ms * 16.5) * MS
        assert 0.02 * mean < regression.residual < 0.1 * mean

    @pytest.mark.parametrize(("size", "level"), some([(8, 3), (1, 1), (32, 0.5), (200, 3)], 2))
    def test_one_size_keeps_the_slope_scaled_to_the_level(self, size: int, level: float) -> None:
        regression = observed(PROFILE, [(size, level * (3 + 0.35 * size))] * 1_000)
        assert line_ms(regression) == pytest.approx((level * 3, level * 0.35), rel=1e-3)

    def test_one_size_without_a_profile_has_no_slope(self) -> None:
        generator = random.Random(4)
        regression = observed((), [(8, 5.8 * generator.gauss(1, 0.1)) for _ in range(1_000)])
        assert line_ms(regression) == (pytest.approx(5.8, rel=0.05), pytest.approx(0, abs=1e-9))

    @pytest.mark.parametrize(
        ("profile", "size"), [((1, 4, 9, 16), 1), (tuple(4 + 3 * max(0, b - 8) for b in range(1, 33)), 5)]
    )
    def test_one_size_where_a_convex_line_crosses_zero_invents_no_slope(self, profile: tuple[int, ...], size: int):
        """Drawn to the slope of the profile, never beyond it, however long nothing but the level is seen."""
        regression = observed([time * MS for time in profile], [(size, profile[size - 1])] * 3_000)
        assert 0 <= regression.beta / MS <= max(later - earlier for earlier, later in pairwise(profile))
        assert regression.predict(size) == pytest.approx(profile[size - 1] * MS, rel=0.01)

    @pytest.mark.parametrize("size", [1, 32])
    def test_an_outlier_of_a_hundred_times_moves_the_line_little(self, size: int) -> None:
        """It counts as twice the prediction, and as one batch in about fifty."""
        regression = observed(PROFILE, noisy(3, 0.35, 300))
        before = [regression.predict(rows) for rows in (1, 8, 32)]
        regression.observe(size, round(100 * regression.predict(size)))
        assert [regression.predict(rows) for rows in (1, 8, 32)] == pytest.approx(before, abs=1.42 * MS)

    @pytest.mark.parametrize("factor", some([0.25, 10], 2))
    def test_an_old_regime_is_forgotten_within_two_hundred_batches(self, factor: float) -> None:
        regression = observed(PROFILE, [*noisy(3, 0.35, 500), *noisy(factor * 3, factor * 0.35, 200, seed=2)])
        for size in (4, 16, 32):
            assert regression.predict(size) == pytest.approx(factor * (3 + 0.35 * size) * MS, rel=0.08)

    def test_no_time_is_no_observation_and_no_prediction_is_below_a_nanosecond(self) -> None:
        assert line_ms(observed(PROFILE, [(4, 0), (4, -5)])) == line_ms(Regression(PROFILE))
        late = Regression((1, 1, 1, 1, 1_000_000))  # its line crosses 0 before the first row
        assert late.alpha < 0
        assert late.predict(1) == 1.0


def times(a_ms: float, c_ms: float) -> tuple[int, ...]:
    """T = a + c B."""
    return tuple(round((a_ms + c_ms * size) * MS) for size in range(1, LARGEST + 1))


def closed_form(a: float, c: float, rate: float) -> int:
    """B / (a + c B) > rate, that is B > a rate / (1 - c rate); times in seconds."""
    return LARGEST if c * rate >= 1 else min(LARGEST, math.floor(a * rate / (1 - c * rate)) + 1)


class TestPreferredSize:
    @pytest.mark.parametrize(("a_ms", "c_ms"), [(7, 0.6), (0.2, 3), (5, 0.25)])
    def test_closed_form_of_a_linear_curve(self, a_ms: float, c_ms: float) -> None:
        for rate in (0, 10, 77, 130, 333, 701, 1_234, 1_500, 5_000):
            expected = closed_form(a_ms / 1e3, c_ms / 1e3, rate)
            assert preferred_size(rate, Latency(Profile(times(a_ms, c_ms))).predict, LARGEST) == expected

    @pytest.mark.parametrize(
        ("rate", "profile", "largest", "expected"),
        [
            pytest.param(100, (10 * MS, 19 * MS), 2, 2, id="throughput-must-exceed-the-rate"),
            pytest.param(99, (10 * MS, 19 * MS), 2, 1, id="and-does"),
            pytest.param(250, (5 * MS, 10 * MS, 15 * MS, 10 * MS), 4, 4, id="a-curve-that-falls"),
            pytest.param(1e6, (), LARGEST, 1, id="nothing-known"),
            pytest.param(1e9, times(7, 0.6), 4, 4, id="no-more-than-the-largest"),
        ],
    )
    def test_smallest_that_exceeds_the_rate(
        self, rate: float, profile: tuple[int, ...], largest: int, expected: int
    ) -> None:
        assert preferred_size(rate, Latency(Profile(profile)).predict, largest) == expected


class TestAlgorithm1:
    @pytest.mark.parametrize(("a_ms", "c_ms"), some([(3, 0.35), (0.2, 3), (4, 0)], 3))
    def test_closed_form_clamped_to_two(self, a_ms: float, c_ms: float) -> None:
        """Every rate of a count in one second up to twice what the largest batch serves, but where two sizes tie."""
        regression, largest = Regression(times(a_ms, c_ms)), LARGEST * 1e3 / (a_ms + c_ms * LARGEST)
        ties = {size * 1e3 / (a_ms + c_ms * size) for size in range(1, LARGEST + 1)}
        tried = [rate for rate in some(range(int(2 * largest)), 20) if all(abs(rate - tie) > 1e-3 for tie in ties)]
        for rate in tried:
            assert algorithm_1(rate, regression, LARGEST) == max(2, closed_form(a_ms / 1e3, c_ms / 1e3, rate)), rate

    @pytest.mark.parametrize("size", some(range(2, LARGEST + 1), 6))
    def test_the_comparison_is_strict(self, size: int) -> None:
        """A rate that a size just serves is not below its throughput. T = 16 + B, so that the line is exact."""
        regression = Regression([16 + rows for rows in range(1, LARGEST + 1)])
        throughput = size * 1e9 / regression.predict(size)
        assert algorithm_1(throughput, regression, LARGEST) == min(size + 1, LARGEST)
        assert algorithm_1(throughput * (1 - 1e-12), regression, LARGEST) == size

    def test_bounds(self) -> None:
        assert [algorithm_1(1e9, Regression(times(7, 0.6)), largest) for largest in (1, 2, 5)] == [1, 2, 5]
        assert algorithm_1(1e6, Regression(), LARGEST) == 1
        assert algorithm_1(100, Regression(times(7, 0.6)), LARGEST, 300 * MS) == LARGEST  # the hand-over counts
