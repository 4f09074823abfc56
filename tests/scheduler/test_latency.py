"""Predictions are the measured table times one scale that follows what is observed."""

from __future__ import annotations

import pytest

from app.scheduler.latency import Latency
from app.scheduler.types import Profile

TABLE = (100, 150, 300, 200)  # three rows take longer than four


@pytest.mark.parametrize(("size", "expected"), [(1, 100), (3, 300), (4, 200), (6, 300), (8, 400)])
def test_predict_reads_the_table_and_extends_its_last_entry(size: int, expected: int) -> None:
    assert Latency(Profile(TABLE)).predict(size) == expected


def test_empty_profile_knows_nothing() -> None:
    latency = Latency(Profile())
    latency.observe(1, 1_000)
    assert not latency.known
    assert latency.predict(4) == 0
    assert latency.scale == 1.0


@pytest.mark.parametrize("size", [1, 3, 4, 8], ids=lambda size: f"{size}-rows")
def test_observing_what_was_predicted_changes_nothing(size: int) -> None:
    latency = Latency(Profile(TABLE))
    latency.observe(size, latency.predict(size))
    assert latency.scale == pytest.approx(1.0)


@pytest.mark.parametrize("mood", [0.5, 2.0])
def test_scale_converges_on_the_mood(mood: float) -> None:
    latency = Latency(Profile(TABLE))
    for _ in range(200):
        latency.observe(2, int(150 * mood))
    assert latency.scale == pytest.approx(mood, rel=1e-3)
    assert latency.predict(4) == pytest.approx(200 * mood, abs=1)


def test_one_outlier_moves_the_scale_little() -> None:
    latency = Latency(Profile(TABLE))
    latency.observe(1, 10**12)
    assert latency.scale == pytest.approx(1.0 + 0.05 * 3)


@pytest.mark.parametrize("compute_ns", [0, -5])
def test_no_time_is_no_observation(compute_ns: int) -> None:
    latency = Latency(Profile(TABLE))
    latency.observe(1, compute_ns)
    assert latency.scale == 1.0


def test_zero_in_the_table_is_no_base() -> None:
    latency = Latency(Profile((0, 10)))
    latency.observe(1, 10)
    assert latency.scale == 1.0
