"""The preferred size is the smallest batch whose throughput exceeds the arrival rate.

`preferred_size` reads the measured table and may answer 1; `algorithm_1` reads the line and scans from 2, as the paper.
"""

from __future__ import annotations

import math

import pytest
from tiers import some

from app.scheduler.estimates.batch_monitor import Regression, algorithm_1, preferred_size
from app.scheduler.estimates.latency import Latency
from app.scheduler.types import Profile

MS = 1_000_000
LARGEST = 32


def linear(a_ms: float, c_ms: float) -> Latency:
    """T = a + c B."""
    return Latency(Profile(tuple(round((a_ms + c_ms * size) * MS) for size in range(1, LARGEST + 1))))


def closed_form(a: float, c: float, rate: float) -> int:
    """B / (a + c B) > rate, that is B > a rate / (1 - c rate); times in seconds."""
    if c * rate >= 1:
        return LARGEST
    return min(LARGEST, math.floor(a * rate / (1 - c * rate)) + 1)


@pytest.mark.parametrize(("a_ms", "c_ms"), [(7, 0.6), (0.2, 3), (5, 0.25)])
@pytest.mark.parametrize("rate", some([0, 10, 77, 130, 333, 701, 1_234, 1_500, 5_000]))
def test_closed_form_of_a_linear_curve(a_ms: float, c_ms: float, rate: float) -> None:
    expected = closed_form(a_ms / 1e3, c_ms / 1e3, rate)
    assert preferred_size(rate, linear(a_ms, c_ms).predict, LARGEST) == expected


def test_throughput_must_exceed_the_rate_not_meet_it() -> None:
    assert preferred_size(100, Latency(Profile((10 * MS, 19 * MS))).predict, 2) == 2
    assert preferred_size(99, Latency(Profile((10 * MS, 19 * MS))).predict, 2) == 1


def test_curve_need_not_be_monotone() -> None:
    latency = Latency(Profile((5 * MS, 10 * MS, 15 * MS, 10 * MS)))
    assert preferred_size(250, latency.predict, 4) == 4


def test_observed_scale_counts() -> None:
    latency = Latency(Profile((10 * MS, 12 * MS)))
    assert preferred_size(99, latency.predict, 2) == 1
    latency.scale = 1.5
    assert preferred_size(99, latency.predict, 2) == 2


def test_unknown_batch_times_prefer_one() -> None:
    assert preferred_size(1e6, Latency(Profile()).predict, LARGEST) == 1


def test_max_batch_bounds_the_answer() -> None:
    assert preferred_size(1e9, linear(7, 0.6).predict, 4) == 4


def line(a_ms: float, c_ms: float) -> Regression:
    return Regression(tuple(round((a_ms + c_ms * size) * MS) for size in range(1, LARGEST + 1)))


@pytest.mark.parametrize(("a_ms", "c_ms"), some([(3, 0.35), (7, 0.6), (0.2, 3), (5, 0.25), (4, 0)], 5))
def test_algorithm_1_is_its_closed_form_clamped_to_two(a_ms: float, c_ms: float) -> None:
    """Every rate of a count in one second up to twice what the largest batch serves, but where two sizes tie."""
    regression = line(a_ms, c_ms)
    largest = LARGEST * 1e3 / (a_ms + c_ms * LARGEST)
    ties = {size * 1e3 / (a_ms + c_ms * size) for size in range(1, LARGEST + 1)}
    tried = some(range(int(2 * largest)), 20)
    rates = [rate for rate in tried if all(abs(rate - tie) > 1e-3 for tie in ties)]
    assert len(rates) > 0.9 * len(tried)
    for rate in rates:
        assert algorithm_1(rate, regression, LARGEST) == max(2, closed_form(a_ms / 1e3, c_ms / 1e3, rate)), rate


@pytest.mark.parametrize("size", some(range(2, LARGEST + 1), 6))
def test_comparison_is_strict(size: int) -> None:
    """A rate that a size just serves is not below its throughput: the next size is taken, and the largest at the end.

    T = 16 + B in nanoseconds, so that the line is exact.
    """
    regression = Regression([16 + rows for rows in range(1, LARGEST + 1)])
    throughput = size * 1e9 / regression.predict(size)
    assert regression.predict(size) == pytest.approx(16 + size, rel=1e-12)
    assert algorithm_1(throughput, regression, LARGEST) == min(size + 1, LARGEST)
    assert algorithm_1(throughput * (1 - 1e-12), regression, LARGEST) == size  # and 32 at 32: a match exactly at max


@pytest.mark.parametrize(("largest", "expected"), [(1, 1), (2, 2), (5, 5)])
def test_overload_takes_the_largest(largest: int, expected: int) -> None:
    assert algorithm_1(1e9, line(7, 0.6), largest) == expected


def test_nothing_known_of_batch_times_prefers_one() -> None:
    assert algorithm_1(1e6, Regression(), LARGEST) == 1
