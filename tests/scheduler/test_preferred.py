"""The preferred size is the smallest batch whose throughput exceeds the arrival rate."""

from __future__ import annotations

import math

import pytest

from app.scheduler.latency import Latency
from app.scheduler.preferred import preferred_size
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
@pytest.mark.parametrize("rate", [0, 10, 77, 130, 333, 701, 1_234, 1_500, 5_000])
def test_closed_form_of_a_linear_curve(a_ms: float, c_ms: float, rate: float) -> None:
    expected = closed_form(a_ms / 1e3, c_ms / 1e3, rate)
    assert preferred_size(rate, linear(a_ms, c_ms), LARGEST) == expected


def test_throughput_must_exceed_the_rate_not_meet_it() -> None:
    assert preferred_size(100, Latency(Profile((10 * MS, 19 * MS))), 2) == 2
    assert preferred_size(99, Latency(Profile((10 * MS, 19 * MS))), 2) == 1


def test_curve_need_not_be_monotone() -> None:
    latency = Latency(Profile((5 * MS, 10 * MS, 15 * MS, 10 * MS)))
    assert preferred_size(250, latency, 4) == 4


def test_observed_scale_counts() -> None:
    latency = Latency(Profile((10 * MS, 12 * MS)))
    assert preferred_size(99, latency, 2) == 1
    latency.scale = 1.5
    assert preferred_size(99, latency, 2) == 2


def test_unknown_batch_times_prefer_one() -> None:
    assert preferred_size(1e6, Latency(Profile()), LARGEST) == 1


def test_max_batch_bounds_the_answer() -> None:
    assert preferred_size(1e9, linear(7, 0.6), 4) == 4
