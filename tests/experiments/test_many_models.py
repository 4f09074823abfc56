"""Several models on one worker: the optimum against simulation, and what the index gains."""

from __future__ import annotations

from statistics import fmean

from experiments.many import models


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
