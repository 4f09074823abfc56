"""What the experiments of experiments/many find in small cases: several models and workers."""

from __future__ import annotations

from statistics import fmean

from experiments.many import models, workers
from experiments.many.workers import missed
from planner.profile_times import linear

# Several models on one worker: the optimum against simulation, and what the index gains.


def test_no_order_is_better_than_the_optimum_and_the_index_is_better_than_the_order_of_arrival() -> None:
    found = models.cell(("1 + 0.05 b, 10 + 0.5 b", 0.6, 0.5, 4_000))
    assert fmean(models.above(found)) > 0
    assert models.gain(found) < -0.2
    assert max(models.rises(found, "index")) < 0.2 < max(models.rises(found, "optimum"))


# Two workers of one model, simulated.


def test_a_cell_of_two_workers() -> None:
    found = workers.cell(("7 + b", linear(7, 1, 4), 1.3, 0.6, 2_000))
    assert found["rate"] == 0.6 * 2 * 4e9 / (1.3 * 11e6)
    assert abs(found["adaptive"][0] / found["optimum"][0] - 1) < 0.03
    assert found["no_wait"][0] > found["optimum"][0]
    late = {"cells": [{**found, "adaptive": [2 * found["optimum"][0]]}]}
    assert missed(late) == ["7 + b, x 1.3, load 0.6: +100.0%"]
