"""The tail is what a share of observations do not exceed, whatever their distribution."""

from __future__ import annotations

import random

import pytest
from tiers import few

from app.scheduler.estimates.quantile import RunningQuantile


@pytest.mark.parametrize("deviation", [0.05, 0.2])
def test_one_in_twenty_is_beyond_it(deviation: float) -> None:
    tail, drawn = RunningQuantile(0.95, 1.0, 2.0, 0.05), random.Random(1)
    beyond, seen = 0, few(40_000)
    for _ in range(seen):
        took = drawn.gauss(1, deviation)
        beyond += took > tail.value
        tail.observe(took)
    assert 0.04 * seen < beyond < 0.06 * seen + 20


def test_it_falls_when_units_are_in_time_again() -> None:
    tail = RunningQuantile(0.95, 1.0, 2.0, 0.05)
    for _ in range(200):
        tail.observe(1.5)
    assert tail.value > 1.4
    for _ in range(2_000):
        tail.observe(1.0)
    assert tail.value == 1.0


def test_stalls_raise_it_to_a_bound() -> None:
    tail = RunningQuantile(0.95, 1.0, 2.0, 0.05)
    for _ in range(200):
        tail.observe(50.0)
    assert tail.value == 2.0
