"""Rows picked by length: the yardsticks' arithmetic, and a small closed loop."""

from __future__ import annotations

import pytest

from experiments.policies import lengths
from experiments.policies.lengths import Device, linear

DEVICE = Device("d", linear(2, 1), "uniform:1:4", (2,))
MS = 1_000_000


def test_the_optimum_of_three_rows_is_that_of_all_orders() -> None:
    """1 and 1 together take 4 ms, 100 after them 102; all together 302, one after another 3, 6 and 108."""
    assert lengths.optimum([1, 100, 1], DEVICE.profile) == pytest.approx((4 + 4 + 106) / 3 * MS)
    assert lengths.optimum([5], DEVICE.profile) == pytest.approx(7 * MS)


def test_by_length_a_closed_loop_serves_more_than_by_count() -> None:
    ways = lengths.ways(Device("d", linear(4, 0.15), lengths.GLUE, (16,)))
    assert lengths.closed(ways["by length"], 300) > 1.5 * lengths.closed(ways["by count"], 300)
