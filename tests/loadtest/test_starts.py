"""Policies right after a start: the figures are over the best of the others."""

from __future__ import annotations

from typing import Any

from loadtest.starts import __main__ as starts


def figures(adaptive: list[float]) -> dict[str, Any]:
    means = {"adaptive": adaptive, "no_wait": [2.0, 4.0, 3.0], "window": [5.0, 1.0, 9.0]}
    return {"rounds": 3, "seconds": 1.0, "models": {"mlp": {"peak": 100.0, "loads": {"0.6": means}}}, "facts": {}}


def test_the_best_of_the_others_is_that_of_the_least_median() -> None:
    assert starts.ratios(figures([2.0, 4.0, 6.0])["models"]["mlp"]["loads"]["0.6"]) == [1.0, 1.0, 2.0]


def test_a_mean_above_the_others_is_named_as_missed() -> None:
    assert starts.PAGE.missed(figures([2.0, 4.0, 6.0])) == []
    assert starts.PAGE.missed(figures([4.0, 8.0, 6.0])) == ["mlp, 0.6 of the peak: 2.00 x the best other; at most 1.03"]
    assert "| mlp | 0.6 of 100/s |" in starts.PAGE.text(figures([2.0, 4.0, 6.0]))
