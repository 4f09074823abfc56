"""The tail is what 99 % of units keep, whatever their distribution."""

from __future__ import annotations

import random

import pytest
from tiers import few

from app.scheduler.estimates.tail import Tail

MS = 1_000_000


def test_where_predictions_hold_nothing_is_added() -> None:
    tail = Tail()
    for _ in range(1_000):
        tail.observe(5 * MS, 5 * MS)
    assert tail.factor == 1.0


@pytest.mark.parametrize("deviation", [0.05, 0.2])
def test_one_unit_in_a_hundred_is_beyond_it(deviation: float) -> None:
    tail, drawn = Tail(), random.Random(1)
    beyond, units = 0, few(40_000)
    for _ in range(units):
        took = round(drawn.gauss(1, deviation) * 10 * MS)
        beyond += took > tail.factor * 10 * MS
        tail.observe(took, 10 * MS)
    assert 0.005 * units < beyond < 0.015 * units + 20


def test_it_falls_when_units_are_in_time_again() -> None:
    tail = Tail()
    for _ in range(100):
        tail.observe(15 * MS, 10 * MS)
    assert tail.factor > 1.4
    for _ in range(2_000):
        tail.observe(10 * MS, 10 * MS)
    assert tail.factor == 1.0
