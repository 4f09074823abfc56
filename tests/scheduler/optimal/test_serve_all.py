"""The closed form is above the exact mean of running all that waits, and near it."""

from __future__ import annotations

import pytest

from app.scheduler.optimal import solver
from app.scheduler.optimal.serve_all import bound_ns

LINES = [(7.0, 0.6), (0.2, 3.0), (4.0, 0.4)]
LARGEST = 96  # rows: far more than ever wait at these loads


def line(tau: float, alpha: float) -> list[int]:
    return [round((tau + alpha * rows) * 1e6) for rows in range(1, LARGEST + 1)]


def published(rate: float, alpha: float, tau: float) -> float:
    """The same as the lesser of two expressions, in ms for a rate per ms."""
    first = (alpha + tau) / (2 * (1 - rate * alpha)) * (1 + 2 * rate * tau + (1 - rate * tau) / (1 + rate * alpha))
    second = 1.5 * tau / (1 - rate * alpha) + alpha / 2 * (rate * alpha + 2) / (1 - (rate * alpha) ** 2)
    return min(first, second)


@pytest.mark.parametrize(("tau", "alpha"), LINES)
@pytest.mark.parametrize("load", [0.05, 0.2, 0.4, 0.6, 0.75])
def test_it_bounds_the_exact_mean_and_is_within_four_percent(tau: float, alpha: float, load: float) -> None:
    times, rate = line(tau, alpha), load / alpha * 1e3
    bound = bound_ns(times, rate)
    assert bound == pytest.approx(published(load / alpha, alpha, tau) * 1e6, rel=1e-6)
    assert bound is not None
    exact = solver.evaluate(times, rate, [min(rows, LARGEST) for rows in range(400)], pad=False).mean_ns
    assert exact * (1 - 1e-4) <= bound <= 1.04 * exact


def test_times_that_are_no_line_are_bounded_by_one_above_them() -> None:
    jagged = line(7, 0.6)
    jagged[2:40] = [time - 2_000_000 for time in jagged[2:40]]
    assert bound_ns(jagged, 500) == bound_ns(line(7, 0.6), 500)
    concave = [1_000_000, *range(2_000_000, 2_000_000 + 95 * 1_000, 1_000)]  # the line that is flat later is the better
    flat = bound_ns([2_000_000] * 96, 2_000)
    assert flat is not None
    assert bound_ns(concave, 2_000) == pytest.approx(flat, rel=0.05)


def test_none_where_the_line_does_not_keep_up() -> None:
    assert bound_ns(line(0.2, 3), 400) is None
    assert bound_ns([5_000_000], 1) == pytest.approx(5_000_000 * 1.005, rel=0.01)
