"""Two workers of one model: against exact results of queueing theory, every policy of a tiny case, and a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import exp

import numpy as np
import pytest
from tiers import few, full

from app.scheduler.optimal.process import Process
from app.scheduler.optimal.time_left import TimeLeft
from app.scheduler.optimal.two_workers import Solution, solve
from planner.profile_times import linear
from planner.two_worker_optimum import evaluated

S = 1_000_000_000
ONE = TimeLeft((1,), (S,), 16)


def best_of(
    process: Process, *, idling: bool = True, tolerance: float = 1e-3, errors: Sequence[float] = ()
) -> Solution:
    return solve(process, process.allowed(idling), tolerance=tolerance, errors=errors)


def waiting_in_m_d_2(rate: float) -> float:
    """Mean latency of M/D/2 with a service of 1 s: the number in the system after each second is a Markov chain
    (C. D. Crommelin, Delay Probability Formulae when the Holding Times are Constant, 1932)."""
    size = 200
    arrivals = [exp(-rate)]
    for number in range(1, size):
        arrivals.append(arrivals[-1] * rate / number)
    inside = np.ones(size) / size
    for _ in range(few(3000)):
        left = np.r_[inside[:3].sum(), inside[3:], 0, 0]
        inside = np.convolve(left, arrivals)[:size]
        inside /= inside.sum()
    return float(inside @ np.maximum(np.arange(size) - 2, 0)) / rate + 1


@pytest.mark.parametrize("rate", [0.4, 1.0, 1.6, 1.8])
def test_without_batches_it_is_m_d_2(rate: float) -> None:
    best = best_of(Process((S,), (S,), rate, ONE, states=40))
    assert best.mean_ns / S == pytest.approx(waiting_in_m_d_2(rate), rel=1e-3)


@full
def test_no_policy_of_a_tiny_case_is_better() -> None:
    """Of all that decide by whether the other runs, how far it is, and by two or more than two rows that wait."""
    times, rate, beside = (S, int(1.3 * S)), 1.5, TimeLeft((2,), (int(1.3 * S),), 2)
    process = Process(times, times, rate, beside, states=12)
    best = best_of(process, tolerance=1e-4)
    means = []
    for free, near, far in product(product((1, 2), (1, 2)), product((0, 1), (0, 2), (1, 2)), (0, 1)):
        columns = [(0, 1, *free, *[2] * 9), (0, *near, *[2] * 9), (0, far, *[2] * 11)]
        means.append(evaluated(process, columns, tolerance=1e-4).mean_ns)
    assert best.mean_ns <= min(means) * (1 + 1e-3)
    same = evaluated(Process(times, times, rate, beside, states=len(best.table[0]) - 1), best.table, tolerance=1e-4)
    assert same.mean_ns == pytest.approx(best.mean_ns, rel=1e-3)


@full
def test_a_second_worker_that_only_slows_waits() -> None:
    """Together each batch takes three times as long: nothing starts beside another, except where both could. Nor in a
    long queue, which two at once would never shorten.
    """
    apart = linear(4, 1, 4).batch_ns
    together = tuple(3 * time for time in apart)
    beside = TimeLeft((1, 4), (together[0], together[3]), 4)
    best = best_of(Process(together, apart, 0.9 * 4 * S / apart[3], beside))
    assert all(rows == 0 for column in best.table[2:4] + best.table[6:] for rows in column)


@pytest.mark.parametrize(
    ("errors", "size"),
    [
        ((), 4),
        ((0.01, 0.01, 0.01, 0.01), 4),
        pytest.param((0.01, 0.01, 0.01, 0.3), 3, id="the-largest-is-no-refuge"),
        pytest.param((0.01, 0.01, 0.3, 0.01), 4, id="nor-is-another"),
    ],
)
def test_of_sizes_about_as_fast_a_known_one_is_run(errors: tuple[float, ...], size: int) -> None:
    """Where many rows wait. Four serve 2 % more a second than three."""
    times = (S, int(1.4 * S), int(1.8 * S), int(2.35 * S))
    beside = TimeLeft((4,), (times[3],), 2)
    best = best_of(Process(times, times, 2.0, beside), idling=False, tolerance=0.01, errors=errors)
    assert {column[40] for column in best.table} == {size}


def test_workers_start_in_turn() -> None:
    """Where a batch takes about as long whatever its size, a few rows wait if the other has just begun, not if it is
    about to end: the rows that come until then share its place."""
    times = linear(7, 0.1, 8).batch_ns
    beside = TimeLeft((8,), (times[7],), 8)
    best = best_of(Process(times, times, 0.5 * 2 * 8 * S / times[7], beside))
    assert best.table[0][2] == 2  # both are free
    assert [column[2] for column in best.table[5:8]] == [0, 0, 0]


@pytest.mark.parametrize("table", [[[0, 2], [0, 0]], [[0, 0], [0, 1]], [[0, -1], [0, 1]]])
def test_other_tables_are_refused(table: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="table: expected 0 to as many rows as wait"):
        evaluated(Process((S,), (S,), 0.5, TimeLeft((1,), (S,), 1), states=1), table)


def test_no_policy_keeps_up() -> None:
    with pytest.raises(ValueError, match="rate: expected less than 2 rows/s"):
        Process((S,), (S,), 2.1, ONE)
