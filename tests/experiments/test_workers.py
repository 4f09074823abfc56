"""Two workers of one model, simulated and over HTTP: the experiments and their tables."""

from __future__ import annotations

import numpy as np
import pytest

from app.scheduler.estimates.profile import linear
from app.sim import arrivals
from experiments.many import steps, workers
from experiments.many.workers import missed


def test_a_cell() -> None:
    found = workers.cell(("7 + b", linear(7, 1, 4), 1.3, 0.6, 2_000))
    assert found["rate"] == 0.6 * 2 * 4e9 / (1.3 * 11e6)
    assert abs(found["adaptive"][0] / found["optimum"][0] - 1) < 0.03
    assert found["no_wait"][0] > found["optimum"][0]
    late = {"cells": [{**found, "adaptive": [2 * found["optimum"][0]]}]}
    assert missed(late) == ["7 + b, x 1.3, load 0.6: +100.0%"]


def test_a_step_over_http_has_about_as_many_requests_as_it_says() -> None:
    text, bounds = steps.timed([(150, 0.5), (300, 1.0)], 1_000)
    assert bounds == pytest.approx([2.0, 2.3, 2.6])
    instants = next(arrivals.make(text, 1_000.0, 0).chunks()) / 1e9
    found = np.diff(np.searchsorted(instants, [0.0, *bounds]))
    assert found == pytest.approx([1_000, 150, 300], rel=0.2)


def test_a_step_is_compared_with_the_best_of_the_others_run_by_run() -> None:
    means = {"no_wait": [10.0, 30.0], "window": [20.0, 20.5], "ebird": [40.0, 40.0], "adaptive": [11.0, 31.0]}
    schedules = {"climb": {policy: [[mean] for mean in found] for policy, found in means.items()}}
    study = {"model": "mlp", "peak": 1_000.0, "schedules": schedules}
    (step,) = steps.compared_steps({"studies": [study], "steps": {"climb": [(150, 0.1)]}})
    assert step["over"] == (1.05, 0)
    assert (step["name"], step["rate"]) == ("climb, 10%", 100.0)
