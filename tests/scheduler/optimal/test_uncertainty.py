"""Tables of times that are known with an error depart from serving all that waits only where that surely gains."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tiers import full

from app.scheduler.estimates.curve import drawn, estimates
from app.scheduler.estimates.profile import linear, parse
from app.scheduler.optimal import solver
from app.scheduler.optimal.tables import ControlTables, solve
from app.scheduler.types import Profile

LOADS = (0.3, 0.6, 0.85)
LINE = linear(7, 0.6, 16).batch_ns
EVERY = tuple(min(rows, 16) for rows in range(257))
JAGGED = parse(
    {"batch_ms": {"1": 4.7, "2": 9.7, "3": 14.2, "4": 9.35, "8": 11.8, "12": 13.8, "16": 16.2}}
).batch_ns  # measured


def mean_ns(true: Sequence[int], load: float, table: Sequence[int], sizes: Sequence[int]) -> float:
    """The exact mean latency of a table on the true curve."""
    peak = max(size * 1e9 / time for size, time in enumerate(true, 1))
    return solver.evaluate([true[size - 1] for size in sizes], load * peak, table, pad=False).mean_ns


def above_no_wait(true: Sequence[int], tables: ControlTables) -> list[float]:
    """By load: the mean latency over that of serving all that waits, less 1."""
    every = tuple(range(1, len(true) + 1))
    return [
        mean_ns(true, load, table, tables.sizes) / mean_ns(true, load, EVERY, every) - 1
        for load, table in zip(tables.loads, tables.tables, strict=True)
    ]


def measured(true: Sequence[int], noise: float, seed: int) -> dict[int, list[float]]:
    """Eight passes; noise adds a heavy-tailed share of mean `noise`."""
    draw = random.Random(seed)
    return {
        size: [ns * (1 + noise * draw.expovariate(1) * (8 if draw.random() < 0.05 else 1)) for _ in range(8)]
        for size, ns in enumerate(true, 1)
    }


def estimated(times: dict[int, list[float]]) -> Profile:
    known = estimates(times)
    return Profile(tuple(map(round, drawn(known).values())), errors=tuple(one.error for one in known.values()))


@full
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.05, 0.3])
@pytest.mark.parametrize("true", [LINE, JAGGED], ids=["line", "jagged"])
def test_a_table_of_noisy_times_is_never_worse_than_serving_all(true: tuple[int, ...], noise: float, seed: int) -> None:
    assert max(above_no_wait(true, solve(estimated(measured(true, noise, seed)), loads=LOADS))) <= 0.01


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
