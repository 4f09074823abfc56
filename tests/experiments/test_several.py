"""Four and eight workers of one model: the optimum and the experiment."""

from __future__ import annotations

import numpy as np
import pytest

from app.scheduler.estimates.profile import linear
from experiments.many import several
from experiments.many.several_optimum import Optimum
from experiments.many.workers import missed


def test_its_policy_has_its_mean() -> None:
    """Three workers, times on the grid, 20,000 rows: one standard error is 0.3 %."""
    best = Optimum([5, 6], 0.6 * 3 * 2 / 6, 3, 6)
    arrivals = np.random.default_rng(3).exponential(1 / best.rate, 20_000).cumsum()
    assert best.latencies(arrivals).mean() == pytest.approx(best.mean, rel=0.01)


def test_a_cell() -> None:
    """As two workers that are twice as fast, with the unit that ends next alone, `adaptive` was 6.8 % above."""
    found = several.cell(("7 + 0.6 b", linear(7, 0.6, 4), 4, 8, 0.65, 4_000))
    assert found["adaptive"][0] < 1.03 * found["optimum"][0]
    assert found["no_wait"][0] > 1.1 * found["optimum"][0]
    late = {"cells": [{**found, "adaptive": [2 * found["optimum"][0]]}]}
    assert missed(late) == ["7 + 0.6 b, 4 workers, load 0.65: +100.0%"]
