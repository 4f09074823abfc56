"""What the experiments of experiments/many find in small cases: deadlines, fifty models, several models and workers."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from app.scheduler.estimates.profile import linear
from experiments.many import deadlines, fifty, models, several, workers
from experiments.many.deadlines import DEVICES
from experiments.many.several_optimum import Optimum
from experiments.many.workers import missed

# Deadlines: the bound has the figures of the paper, and the objective takes less device time.


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


# What a batch costs the scheduler does not grow with the models that have nothing waiting.


def test_a_batch_makes_as_many_calls_beside_49_idle_models_as_alone() -> None:
    alone, idle, busy = (fifty.cost(*given, 20)["calls"] for given in ((1, 1), (50, 1), (50, 50)))
    assert idle <= alone + 1
    assert busy < 10 * alone


# Several models on one worker: the optimum against simulation, and what the index gains.


def test_no_order_is_better_than_the_optimum_and_the_index_is_better_than_the_order_of_arrival() -> None:
    found = models.cell(("1 + 0.05 b, 10 + 0.5 b", 0.6, 0.5, 4_000))
    assert fmean(models.above(found)) > 0
    assert models.gain(found) < -0.2
    assert max(models.rises(found, "index")) < 0.2 < max(models.rises(found, "optimum"))


def test_four_models_gain_and_an_overloaded_one_does_not_starve_another() -> None:
    found = models.several((list(models.FOUR), [0.15] * 4, 1, 6_000))
    assert models.gain(found) < -0.3
    assert max(models.rises(found, "index")) < 0.15
    fast, _, slow, _ = models.FOUR
    found = models.several(([fast, slow], [models.OVERLOADED, models.BESIDE], 1, 20_000))
    assert max(models.rises(found, "index")) < 0.1


# Two workers of one model, simulated.


def test_a_cell_of_two_workers() -> None:
    found = workers.cell(("7 + b", linear(7, 1, 4), 1.3, 0.6, 2_000))
    assert found["rate"] == 0.6 * 2 * 4e9 / (1.3 * 11e6)
    assert abs(found["adaptive"][0] / found["optimum"][0] - 1) < 0.03
    assert found["no_wait"][0] > found["optimum"][0]
    late = {"cells": [{**found, "adaptive": [2 * found["optimum"][0]]}]}
    assert missed(late) == ["7 + b, x 1.3, load 0.6: +100.0%"]


# Four and eight workers of one model: the optimum and the experiment.


def test_its_policy_has_its_mean() -> None:
    """Three workers, times on the grid, 20,000 rows: one standard error is 0.3 %."""
    best = Optimum([5, 6], 0.6 * 3 * 2 / 6, 3, 6)
    arrivals = np.random.default_rng(3).exponential(1 / best.rate, 20_000).cumsum()
    assert best.latencies(arrivals).mean() == pytest.approx(best.mean, rel=0.01)


def test_a_cell_of_four_workers() -> None:
    """As two workers that are twice as fast, with the unit that ends next alone, `adaptive` was 6.8 % above."""
    found = several.cell(("7 + 0.6 b", linear(7, 0.6, 4), 4, 8, 0.65, 4_000))
    assert found["adaptive"][0] < 1.03 * found["optimum"][0]
    assert found["no_wait"][0] > 1.1 * found["optimum"][0]
    late = {"cells": [{**found, "adaptive": [2 * found["optimum"][0]]}]}
    assert missed(late) == ["7 + 0.6 b, 4 workers, load 0.65: +100.0%"]
