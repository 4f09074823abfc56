"""The optimum of two stages against the one-stage solver."""

from __future__ import annotations

import pytest
from tiers import full

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal import solver
from experiments.stages.two_stages import Action, evaluate, solve

FLAT = linear(3.5, 0.3, 4).batch_ns
STEEP = linear(0.1, 1.5, 4).batch_ns


def peak(first: tuple[int, ...], second: tuple[int, ...]) -> float:
    return max(size * 1e9 / sum(times) for size, times in enumerate(zip(first, second, strict=True), 1))


def unsliced(waiting: int, standing: int) -> Action:
    """All that waits, from end to end."""
    rows = min(standing or waiting, 4)
    return Action(int(standing > 0), rows, rows)


@full
@pytest.mark.parametrize("load", [0.3, 0.9])
def test_going_through_at_once_is_the_whole_model(load: float) -> None:
    whole = tuple(map(sum, zip(FLAT, STEEP, strict=True)))
    rate = load * peak(FLAT, STEEP)
    table = [min(waiting, 4) for waiting in range(257)]
    expected = solver.evaluate(whole, rate, table).mean_ns
    assert evaluate(FLAT, STEEP, rate, unsliced, states=128).mean_ns == pytest.approx(expected, rel=1e-6)
    assert solve(FLAT, STEEP, rate).mean_ns < solver.solve(whole, rate).mean_ns
