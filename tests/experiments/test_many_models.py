"""Two models on one worker: the decision process against one model and against simulation, and what the index gains."""

from __future__ import annotations

from statistics import fmean

import numpy as np
import pytest

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal import solver
from experiments.many import driver, models, two_models

FAST, SLOW = linear(1, 0.05, 4), linear(10, 0.5, 4)


def test_the_optimum_of_one_model_is_that_of_its_own_process() -> None:
    """The other's rows are so rare that they change nothing."""
    rate = 0.6 * SLOW.peak
    best = two_models.solve([SLOW.batch_ns, FAST.batch_ns], [rate, 1e-6], states=400)
    assert best.mean_ns == pytest.approx(solver.solve(SLOW.batch_ns, rate, idling=False).mean_ns, rel=1e-3)
    assert [best.choose((rows, 0)) for rows in (1, 3, 999)] == [(0, 1), (0, 3), (0, 4)]


def test_the_optimum_is_what_a_simulation_of_it_has() -> None:
    rates = [0.4 * FAST.peak, 0.3 * SLOW.peak]
    best = two_models.solve([FAST.batch_ns, SLOW.batch_ns], rates, states=900)
    latencies = driver.follow([FAST, SLOW], driver.arrivals(rates, 20_000, 1), best.choose)
    assert np.concatenate(latencies).mean() == pytest.approx(best.mean_ns / 1e6, rel=0.04)


def test_no_order_is_better_than_the_optimum_and_the_index_is_better_than_the_order_of_arrival() -> None:
    found = models.cell(("1 + 0.05 b, 10 + 0.5 b", 0.6, 0.5, 4_000))
    assert fmean(models.above(found)) > 0
    assert models.gain(found) < -0.2
    assert max(models.rises(found, "index")) < 0.2 < max(models.rises(found, "optimum"))


def test_models_of_about_one_speed_keep_the_order_of_arrival() -> None:
    rates = [0.3 * FAST.peak, 0.3 * FAST.peak]
    instants = driver.arrivals(rates, 2_000, 1)
    tables = [models._solve(FAST.stage(1))] * 2
    means = [fmean(map(np.mean, driver.serve([FAST, FAST], tables, instants, one))) for one in ("streams", "reef")]
    assert means[1] == pytest.approx(means[0], rel=0.05)


def test_four_models_gain_and_an_overloaded_one_does_not_starve_another() -> None:
    found = models.several((list(models.FOUR), [0.15] * 4, 1, 6_000))
    assert models.gain(found) < -0.3
    assert max(models.rises(found, "index")) < 0.15
    fast, _, slow, _ = models.FOUR
    found = models.several(([fast, slow], [models.OVERLOADED, models.BESIDE], 1, 20_000))
    assert max(models.rises(found, "index")) < 0.1
