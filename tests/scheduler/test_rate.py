"""The rate is rows per second over the last closed window, whatever the window's true length."""

from __future__ import annotations

import pytest

from app.scheduler.rate import RateMonitor

SECOND = 1_000_000_000


def test_rate_is_zero_until_a_window_closes() -> None:
    monitor = RateMonitor(0)
    monitor.arrive(5)
    assert monitor.rate == 0.0


@pytest.mark.parametrize(("window", "rate"), [(SECOND, 30.0), (2 * SECOND, 15.0), (SECOND // 2, 60.0)])
def test_rate_divides_by_the_true_length(window: int, rate: float) -> None:
    monitor = RateMonitor(7)
    monitor.arrive(10)
    monitor.arrive(20)
    monitor.tick(7 + window)
    assert monitor.rate == pytest.approx(rate)


def test_each_window_starts_afresh() -> None:
    monitor = RateMonitor(0)
    monitor.arrive(10)
    monitor.tick(SECOND)
    monitor.tick(2 * SECOND)
    assert monitor.rate == 0.0


def test_window_of_no_length_is_not_closed() -> None:
    monitor = RateMonitor(0)
    monitor.arrive(10)
    monitor.tick(0)
    assert monitor.rate == 0.0
    monitor.tick(SECOND)
    assert monitor.rate == pytest.approx(10.0)
