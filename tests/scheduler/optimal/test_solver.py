"""The optimum against closed forms, against brute force, and against itself with twice the states."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiers import full, repeatable

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import Profile
from app.scheduler.estimates.profile_format import parse
from app.scheduler.optimal.solver import solve, values
from experiments.common.plain_queue import mean_ns
from planner.one_worker_optimum import use_of
from planner.profile_times import linear

MS = 1_000_000
CURVES = {
    "cnn": linear(0.2, 3, 32).batch_ns,
    "gpu": tuple(round((4 + 0.4 * max(0, size - 8)) * MS) for size in range(1, 33)),
    "mlp": parse({"batch_ms": {"1": 4.6, "2": 9.5, "3": 14.0, "4": 10.0, "8": 11.7, "16": 17.4, "32": 25.3}}).batch_ns,
    "overhead": linear(7, 0.6, 32).batch_ns,
}


@full
@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("load", [0.05, 0.9])
def test_twice_the_states_give_the_same(curve: str, load: float) -> None:
    rate = load * Profile(CURVES[curve]).peak
    once = solve(CURVES[curve], rate)
    twice = solve(CURVES[curve], rate, states=512)
    assert twice.mean_ns == pytest.approx(once.mean_ns, rel=1e-9)
    assert use_of(CURVES[curve], twice) == pytest.approx(use_of(CURVES[curve], once), rel=1e-9)
    assert twice.table[:64] == once.table[:64]


@pytest.mark.parametrize("rho", [0.1, 0.5, 0.9, 0.99])
def test_single_rows_are_m_d_1(rho: float) -> None:
    """Pollaczek and Khinchine: the mean wait is rho T / (2 (1 - rho))."""
    best = solve((4 * MS,), rho / 0.004, states=64)
    assert best.mean_ns == pytest.approx(4 * MS * (1 + rho / (2 * (1 - rho))), rel=1e-9)
    assert use_of((4 * MS,), best) == pytest.approx((1, rho))


@full
@pytest.mark.parametrize("load", [0.3, 0.7, 0.9])
@pytest.mark.parametrize("largest", [2, 3, 5])
def test_small_batches_against_a_plain_solution(load: float, largest: int) -> None:
    batch_ns = linear(2, 1, largest).batch_ns
    rate = load * Profile(batch_ns).peak
    for idling in (True, False):
        best = solve(batch_ns, rate, idling=idling)
        serve = dict(enumerate(best.table))
        plain = mean_ns(batch_ns, rate, lambda waiting, serve=serve, tail=best.tail: serve.get(waiting, tail))
        assert best.mean_ns == pytest.approx(plain, rel=1e-9)


@full
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("batch_ns", [(4 * MS, 5 * MS), (4 * MS, 7 * MS), (6 * MS, 5 * MS)], ids=str)
def test_no_table_is_better(load: float, batch_ns: tuple[int, ...]) -> None:
    """All that can be done while up to four rows wait, tried out; more rows than that leave two at a time."""
    rate = load * Profile(batch_ns).peak
    times = batch_ns if batch_ns[0] <= batch_ns[1] else (batch_ns[1], batch_ns[1])
    tried = min(
        mean_ns(times, rate, [0, *actions, *[2] * 55].__getitem__, 60)
        for actions in product((0, 1), (0, 1, 2), (0, 1, 2), (1, 2))
    )
    assert solve(batch_ns, rate, states=100).mean_ns <= tried * (1 + 1e-9)
    assert solve(batch_ns, rate, states=100).mean_ns == pytest.approx(tried, rel=0.002)


def test_what_cannot_be_solved() -> None:
    batch_ns = CURVES["overhead"]
    with pytest.raises(ValueError, match=r"expected less than 1221\.37 rows/s"):
        solve(batch_ns, 1222)
    with pytest.raises(ValueError, match="above 0"):
        solve(batch_ns, 0)
    with pytest.raises(ValueError, match="batch_ns"):
        solve((), 1)
    with pytest.raises(ValueError, match="at least the largest batch, 32"):
        solve(batch_ns, 1, states=31)


@repeatable(60)
@given(
    curve=st.lists(st.integers(MS, 10 * MS), min_size=2, max_size=12),
    load=st.sampled_from([0.02, 0.1, 0.3, 0.45, 0.7, 0.9]),
)
@full
def test_where_waiting_pays_no_simple_table_is_better(curve: list[int], load: float) -> None:
    """Jagged curves: tables that wait for k rows and run them, for every k."""
    batch_ns = tuple(curve)
    rate = load * Profile(batch_ns).peak
    best = solve(batch_ns, rate, states=64)
    assert all(rows or waiting < len(curve) for waiting, rows in enumerate(best.table)), "waits with a full batch"
    most = max(range(1, len(curve) + 1), key=lambda size: size / batch_ns[size - 1])
    for least in range(1, len(curve) + 1):
        if max(least, most) * 1e9 / min(batch_ns[max(least, most) - 1 :]) <= rate:
            continue  # it does not keep up
        table = [0 if waiting < least else min(waiting, max(least, most)) for waiting in range(300)]
        assert best.mean_ns <= mean_ns(padded(batch_ns)[0], rate, table.__getitem__) * (1 + 1e-7)
    assert best.mean_ns <= solve(batch_ns, rate, idling=False, states=64).mean_ns * (1 + 1e-7)


def test_values_of_states_are_those_of_the_policy() -> None:
    """From an empty device the next thing is an arrival, which costs nothing but the average for that time."""
    times = [round((7 + 0.6 * size) * 1e6) for size in range(1, 9)]
    best = solve(times, 300.0, idling=False)
    inside, worth = values(times, best)
    assert inside == pytest.approx(best.rate * best.mean_ns / 1e9)  # Little's law
    assert worth[0] == 0
    assert worth[1] == pytest.approx(inside / (best.rate / 1e9))
    assert all(more > fewer for fewer, more in pairwise(worth))


def test_a_long_queue_is_served_by_the_size_that_serves_most() -> None:
    times = (10 * MS, 11 * MS, 12 * MS, 17 * MS)
    best = solve(times, 0.7 * Profile(times).peak, states=64)
    assert (best.tail, best.table[40]) == (3, 3)
