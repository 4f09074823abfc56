"""The rate is rows per second over the last closed window, whatever the window's true length."""

from __future__ import annotations

import random

import pytest
from tiers import full

from app.scheduler.estimates.batch_monitor import RateMonitor

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


def windows(*counts: int) -> RateMonitor:
    monitor = RateMonitor(0)
    for second, count in enumerate(counts, 1):
        monitor.arrive(count)
        monitor.tick(second * SECOND)
    return monitor


class TestSteady:
    @pytest.mark.parametrize(
        ("counts", "steady"),
        [
            pytest.param((100,), 100, id="the-first-window"),
            pytest.param((100, 110, 90, 104), 101, id="the-mean-of-windows-that-differ-by-chance"),
            pytest.param((100, 110, 300), 300, id="begins-anew-after-a-step-up"),
            pytest.param((100, 110, 60), 60, id="and-after-a-step-down"),
            pytest.param((100, 0), 0, id="silence"),
            pytest.param((0, 0, 7), 7, id="the-first-after-silence"),
        ],
    )
    def test_mean_since_the_last_change(self, counts: tuple[int, ...], steady: float) -> None:
        assert windows(*counts).steady == pytest.approx(steady)

    def test_follows_what_changes_slowly(self) -> None:
        """One percent a second is never three deviations of a window, and is followed ten windows late."""
        counts = [round(100 * 1.01**second) for second in range(100)]
        assert windows(*counts).steady == pytest.approx(counts[-10], rel=0.03)

    def test_the_window_itself_is_reported_as_it_was(self) -> None:
        assert windows(100, 110).rate == 110


@full
@pytest.mark.parametrize("rate", [0.05, 0.2, 1, 5, 300])
def test_steady_is_not_drawn_up_by_single_arrivals(rate: float) -> None:
    """Over a thousand windows of a Poisson process its mean is the rate, however few come in a window."""
    generator, monitor, means = random.Random(1), RateMonitor(0), []
    due = generator.expovariate(rate)
    for window in range(1, 4_001):
        while due < window:
            monitor.arrive(1)
            due += generator.expovariate(rate)
        monitor.tick(window * SECOND)
        means.append(monitor.steady)
    assert sum(means[20:]) / len(means[20:]) == pytest.approx(rate, rel=0.15)


def test_a_step_is_seen_in_one_window() -> None:
    monitor = RateMonitor(0)
    for window in range(1, 11):
        monitor.arrive(100)
        monitor.tick(window * SECOND)
    monitor.arrive(200)
    monitor.tick(11 * SECOND)
    assert monitor.steady == pytest.approx(200)
