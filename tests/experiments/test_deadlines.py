"""Deadlines: the bound has the figures of the paper, and who knows all arrivals is bounded by trying everything."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.many import clairvoyant, deadlines
from experiments.many.deadlines import DEVICES, Device

RESNET = DEVICES[0]
WAYS = ("deadline", "all that waits")


def test_the_bound_is_that_of_the_paper() -> None:
    assert RESNET.bound(8)[0] == pytest.approx(5_839, abs=1)
    assert RESNET.bound(8, wait=1.0)[0] == pytest.approx(4_501, abs=1)
    assert RESNET.bound(8)[1] == 16


def test_the_least_device_time_is_that_of_rows_that_come_while_the_first_waits() -> None:
    """T(b) = 4 + 2 b ms, 24 ms, 500 rows/s: 1 + (24 - T(b)) / 2 rows, so b = 5.5 and T(b) = 15 ms."""
    assert Device("", 4, 2, 24).least(500) == pytest.approx(15 / 5.5)


def test_served_leaves_out_the_first_second() -> None:
    found = deadlines.served(RESNET.setup(2, policy="no_wait"), 200, 400, 1)
    assert found["in_time"] == 1
    assert found["row_ms"] == pytest.approx(RESNET.time(found["batch"]) / found["batch"], rel=0.01)


def test_the_objective_takes_less_device_time_and_is_in_time() -> None:
    """With the same arrivals, at a third of the bound."""
    ours, eager = (deadlines.served(RESNET.setup(2, **deadlines.WAYS[way]), 400, 400, 1) for way in WAYS)
    assert ours["in_time"] == 1
    assert ours["row_ms"] < 0.6 * eager["row_ms"]


@pytest.mark.parametrize("seed", range(4))
def test_who_knows_all_arrivals_does_at_least_as_well_as_any_schedule(seed: int) -> None:
    """The grid is in its favour, by one row of ten at most here."""
    rows, deadline, rate = 10, 12.0, 900.0
    arrivals = np.random.default_rng(seed).exponential(1e3 / rate, rows).cumsum().tolist()

    def most(row: int, free: tuple[float, ...]) -> int:
        if row == rows:
            return 0
        best = most(row + 1, free)
        for size in range(1, rows - row + 1):
            end = max(free[0], arrivals[row + size - 1]) + 4 + 2 * size
            if end > arrivals[row] + deadline:
                break
            best = max(best, size + most(row + size, tuple(sorted((free[1], end)))))
        return best

    best = most(0, (0.0, 0.0)) / rows
    assert best <= clairvoyant.in_time(4, 2, deadline, rate, rows, seed) <= best + 0.1
