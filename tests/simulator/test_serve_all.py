"""Serving all that waits: its closed form, and tables that depart from it only where that surely gains."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tiers import full

from app.scheduler.estimates.curve import STEADY, Curve
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse
from app.scheduler.optimal.tables import ControlTables, solve
from experiments.common import plain_queue
from planner.profile_times import linear
from planner.serve_all import bound_ns

# The closed form is above the exact mean of running all that waits, and near it.


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
    exact = plain_queue.mean_ns(times, rate, lambda waiting: min(waiting, LARGEST))
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


# Tables of times that are known with an error depart from serving all that waits only where that surely gains.


LOADS = (0.3, 0.6, 0.85)
LINE = linear(7, 0.6, 16).batch_ns
EVERY = tuple(min(rows, 16) for rows in range(129))
JAGGED = parse(
    {"batch_ms": {"1": 4.7, "2": 9.7, "3": 14.2, "4": 9.35, "8": 11.8, "12": 13.8, "16": 16.2}}
).batch_ns  # measured


def mean_ns(true: Sequence[int], load: float, table: Sequence[int], sizes: Sequence[int]) -> float:
    """The exact mean latency of a table on the true curve."""
    rate = load * Profile(tuple(true)).peak
    return plain_queue.mean_ns(
        [true[size - 1] for size in sizes], rate, lambda waiting: table[min(waiting, len(table) - 1)]
    )


def above_no_wait(true: Sequence[int], tables: ControlTables) -> list[float]:
    """By load: the mean latency over that of serving all that waits, less 1."""
    every = tuple(range(1, len(true) + 1))
    return [
        mean_ns(true, load, table, tables.sizes) / mean_ns(true, load, EVERY, every) - 1
        for load, table in zip(tables.loads, tables.tables, strict=True)
    ]


class Noisy:
    """A curve that has seen eight passes; noise adds a heavy-tailed share of mean `noise`."""

    def __init__(self, true: Sequence[int], noise: float, seed: int) -> None:
        self._true, self._noise, self._draw = true, noise, random.Random(seed)
        self._curve = Curve(Profile((true[0],) * len(true), errors=(1.0,) * len(true)), doubt=STEADY)
        for _ in range(8):
            self.see(*self._draw.sample(range(1, len(true) + 1), len(true)))

    def see(self, *sizes: int) -> None:
        for size in sizes:
            slow = 1 + self._noise * self._draw.expovariate(1) * (8 if self._draw.random() < 0.05 else 1)
            self._curve.observe(size, round(self._true[size - 1] * slow))

    def tables(self) -> ControlTables:
        return solve(self._curve.learned(), loads=LOADS)

    def serve_a_long_queue(self, tables: ControlTables) -> None:
        """Ninety full batches, of which each third is of the size that would serve most if it were lucky."""
        times, errors = self._curve.batch_ns, self._curve.errors()
        speeds = [size / (time * (1 - error)) for size, (time, error) in enumerate(zip(times, errors, strict=True), 1)]
        self.see(*[tables.tail, tables.tail, speeds.index(max(speeds)) + 1] * 30)


@full
@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize("true", [LINE, JAGGED], ids=["line", "jagged"])
def test_a_table_of_noisy_times_is_hardly_ever_worse_than_serving_all(true: tuple[int, ...], noise: float) -> None:
    """Of sixteen servers at most one: of several spikes at one size it is not known that they are not its time.

    A size that only seems to serve most costs something at high loads, until its queue has shown that.
    """
    worst = []
    for seed in range(16):
        server = Noisy(true, noise, seed)
        tables = server.tables()
        assert max(above_no_wait(true, tables)[:-1]) <= 0.02
        for _ in range(8):
            server.serve_a_long_queue(tables)
            tables = server.tables()
        worst.append(max(above_no_wait(true, tables)))
    assert sorted(worst)[-2] <= 0.02


@full
def test_a_lucky_size_decides_nothing() -> None:
    lucky = (*LINE[:11], round(0.8 * LINE[11]), *LINE[12:])
    exact = solve(Profile(lucky), loads=LOADS)
    assert EVERY not in exact.tables
    assert exact.sizes[8] == 12
    doubted = solve(Profile(lucky, errors=(0.15,) * 16), loads=LOADS)
    assert set(doubted.tables) == {EVERY}
    assert doubted.sizes == tuple(range(1, 17))
    assert doubted.tail == 16


@full
def test_a_curve_that_is_well_known_is_exploited() -> None:
    known = solve(Profile(JAGGED, errors=(0.005,) * 16), loads=LOADS[:2])
    assert known.tables == solve(Profile(JAGGED), loads=LOADS[:2]).tables


def test_measured_once_it_is_served_as_by_no_wait() -> None:
    assert set(solve(Profile(LINE, errors=(0.25,) * 16), loads=LOADS).tables) == {EVERY}
