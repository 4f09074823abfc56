"""Deadlines: the bound has the figures of the paper, and the objective takes less device time."""

from __future__ import annotations

import pytest

from experiments.many import deadlines
from experiments.many.deadlines import DEVICES

RESNET = DEVICES[0]
WAYS = ("deadline", "all that waits")


def test_the_bound_is_that_of_the_paper() -> None:
    assert RESNET.bound(8)[0] == pytest.approx(5_839, abs=1)
    assert RESNET.bound(8, wait=1.0)[0] == pytest.approx(4_501, abs=1)
    assert RESNET.bound(8)[1] == 16


def test_the_objective_takes_less_device_time_and_is_in_time() -> None:
    """With the same arrivals, at a third of the bound."""
    ours, eager = (deadlines.served(RESNET.setup(2, **deadlines.WAYS[way]), 400, 400, 1) for way in WAYS)
    assert ours["in_time"] == 1
    assert ours["row_ms"] < 0.6 * eager["row_ms"]
