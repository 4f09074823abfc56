"""Predictions are the measured table times one scale that follows what is observed."""

from __future__ import annotations

import pytest

from app.scheduler.estimates.latency import Latency
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


AT_ONCE = Profile(TABLE, ((160, 240, 480, 320), (220, 330, 660, 440)))


@pytest.mark.parametrize(
    ("size", "running", "expected"),
    [(1, 1, 100), (1, 2, 160), (4, 2, 320), (2, 3, 330), (2, 9, 330), (8, 2, 640)],
    ids=["alone", "two", "two-of-four", "three", "more-than-measured", "beyond-the-table"],
)
def test_units_at_once_have_tables_of_their_own(size: int, running: int, expected: int) -> None:
    assert Latency(AT_ONCE).predict(size, running) == expected


def test_units_at_once_do_not_move_the_scale_while_they_take_what_was_measured() -> None:
    latency = Latency(AT_ONCE)
    for running, compute_ns in ((1, 150), (2, 240), (3, 330), (7, 330)):
        latency.observe(2, compute_ns, running)
    assert latency.scale == pytest.approx(1.0)
    latency.observe(2, 240, 1)  # alone it should have taken 150
    assert latency.scale == pytest.approx(1.0 + 0.05 * 0.6)


def test_scale_returns_to_the_profile_while_nothing_runs() -> None:
    """A tenth of the way for each empty window: else a scale that has every call refused would stay for ever."""
    latency = Latency(Profile(TABLE))
    latency.scale = 11.0
    latency.tick()
    assert latency.scale == pytest.approx(10.0)
    latency.tick()
    assert latency.scale == pytest.approx(9.1)
    for _ in range(100):
        latency.tick()
    assert latency.scale == pytest.approx(1.0, abs=0.001)


def test_scale_stays_over_a_window_in_which_something_ran() -> None:
    latency = Latency(Profile(TABLE))
    latency.scale = 2.0
    latency.observe(2, 300)
    latency.tick()
    assert latency.scale == pytest.approx(2.0)
    latency.tick()
    assert latency.scale == pytest.approx(1.9)


BY_LENGTH = Profile((100, 200), ((150, 300),), ((10, (40, 80)), (30, (100, 200))))


def test_shorter_rows_take_what_was_measured_of_their_length() -> None:
    latency = Latency(BY_LENGTH)
    assert [latency.predict(2, 1, length) for length in (0, 10, 20, 30, 60)] == [200, 80, 140, 200, 400]
    assert latency.predict(4, 1, 10) == 160  # beyond the largest batch
    assert latency.predict(2, 2, 10) == 120  # other units slow it as they slow the longest
    assert Latency(Profile((100, 200))).predict(2, 1, 10) == 200


def test_what_short_rows_take_does_not_move_the_scale_of_long_ones() -> None:
    latency = Latency(BY_LENGTH)
    for _ in range(100):
        latency.observe(2, 80, 1, 10)
    assert latency.scale == pytest.approx(1.0)


def test_what_is_planned_for_any_rows_follows_the_rows_that_come() -> None:
    latency = Latency(BY_LENGTH)
    for _ in range(200):
        latency.observe(2, 80, 1, 10)
    assert latency.planned == pytest.approx(0.4, rel=1e-3)
    assert latency.predict(2) == 80
    assert latency.slowdown(2, 1) == latency.planned
    assert latency.predict(2, 1, 10) == 80
    for _ in range(60):
        latency.tick()
    assert latency.planned == pytest.approx(1.0, abs=0.01)
