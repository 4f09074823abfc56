"""What `size` tells against a server: a round is compared with itself, and rounds by their median."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.sized import __main__ as sized


def figures(told: list[float]) -> dict[str, Any]:
    both = {"told": told, "live": [10.0, 20.0, 40.0]}
    models = {"mlp": {"peak": 100.0, "http": [], "loads": {"0.8": {"p50": both}}}}
    return {"rounds": 3, "seconds": 1.0, "models": models, "facts": {}}


def test_a_round_is_compared_with_itself() -> None:
    assert sized.off(figures([11.0, 10.0, 44.0])["models"]["mlp"]["loads"]["0.8"]["p50"]) == pytest.approx(0.1)


def test_figures_that_are_far_off_are_counted() -> None:
    assert sized.PAGE.missed(figures([11.0, 10.0, 44.0])) == []
    assert sized.PAGE.missed(figures([13.0, 26.0, 44.0])) == ["0 of 1 figures within 25%; 15 of 16 wanted"]
    assert "| mlp | 0.8 of 100/s | p50 | 26.0 (13.0 to 44.0) |" in sized.PAGE.text(figures([13.0, 26.0, 44.0]))
