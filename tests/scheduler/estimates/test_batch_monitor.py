"""The rate of the last window, the line of batch times, and the two preferred sizes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tiers import some

from app.scheduler.estimates.batch_monitor import RateMonitor, algorithm_1, preferred_size, regression
from app.scheduler.estimates.curve import Curve
from app.scheduler.estimates.profile import Profile
from planner.profile_times import linear

SECOND, MS, LARGEST = 1_000_000_000, 1_000_000, 32
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


class TestLine:
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
    def test_it_is_that_of_least_squares(self, profile: tuple[int, ...], expected: tuple[float, float]) -> None:
        line = regression(profile)
        assert (line.alpha / MS, line.beta / MS) == pytest.approx(tuple(expected), abs=1e-6)
        left = np.array(profile) / MS - expected[0] - expected[1] * np.arange(1, len(profile) + 1)
        assert line.residual / MS == pytest.approx(np.sqrt(np.mean(left**2)), abs=1e-6)
        assert line.scaled(2).predict(7) == pytest.approx(2 * (line.alpha + 7 * line.beta))

    def test_no_prediction_is_below_a_nanosecond(self) -> None:
        late = regression((1, 1, 1, 1, 1_000_000))  # its line crosses 0 before the first row
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
            assert preferred_size(rate, Curve(Profile(times(a_ms, c_ms))).predict, LARGEST) == expected

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
    def test_smallest_that_exceeds_the_rate(self, rate, profile, largest, expected) -> None:
        assert preferred_size(rate, Curve(Profile(profile)).predict, largest) == expected


class TestAlgorithm1:
    @pytest.mark.parametrize(("a_ms", "c_ms"), [(3, 0.35), (0.2, 3), (4, 0)])
    def test_closed_form_clamped_to_two(self, a_ms: float, c_ms: float) -> None:
        """Every rate of a count in one second up to twice what the largest batch serves, but where two sizes tie."""
        line, largest = regression(times(a_ms, c_ms)), LARGEST * 1e3 / (a_ms + c_ms * LARGEST)
        ties = {size * 1e3 / (a_ms + c_ms * size) for size in range(1, LARGEST + 1)}
        tried = [rate for rate in some(range(int(2 * largest)), 20) if all(abs(rate - tie) > 1e-3 for tie in ties)]
        for rate in tried:
            assert algorithm_1(rate, line, LARGEST) == max(2, closed_form(a_ms / 1e3, c_ms / 1e3, rate)), rate

    @pytest.mark.parametrize("size", range(2, LARGEST + 1))
    def test_the_comparison_is_strict(self, size: int) -> None:
        """A rate that a size just serves is not below its throughput. T = 16 + B, so that the line is exact."""
        line = regression([16 + rows for rows in range(1, LARGEST + 1)])
        throughput = size * 1e9 / line.predict(size)
        assert algorithm_1(throughput, line, LARGEST) == min(size + 1, LARGEST)
        assert algorithm_1(throughput * (1 - 1e-12), line, LARGEST) == size

    def test_bounds(self) -> None:
        assert [algorithm_1(1e9, regression(times(7, 0.6)), largest) for largest in (1, 2, 5)] == [1, 2, 5]
        assert algorithm_1(1e6, regression(()), LARGEST) == 1
        assert algorithm_1(100, regression(times(7, 0.6)), LARGEST, 300 * MS) == LARGEST  # the hand-over counts
