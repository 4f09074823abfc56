"""Two workers of one model, simulated."""

from __future__ import annotations

from app.scheduler.estimates.profile import linear
from experiments.many import workers
from experiments.many.workers import missed


def test_a_cell() -> None:
    found = workers.cell(("7 + b", linear(7, 1, 4), 1.3, 0.6, 2_000))
    assert found["rate"] == 0.6 * 2 * 4e9 / (1.3 * 11e6)
    assert abs(found["adaptive"][0] / found["optimum"][0] - 1) < 0.03
    assert found["no_wait"][0] > found["optimum"][0]
    late = {"cells": [{**found, "adaptive": [2 * found["optimum"][0]]}]}
    assert missed(late) == ["7 + b, x 1.3, load 0.6: +100.0%"]
