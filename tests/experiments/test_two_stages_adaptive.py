"""The exact mean of a policy between two stages: that of the simulator, and `adaptive`'s distance to the optimum."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import full

from app.scheduler.estimates.profile import ModelProfile, linear
from app.sim import options
from app.sim.fleet import Setup, run
from experiments.stages.two_stages import solve
from experiments.stages.two_stages_adaptive import exact, halved, times

PROFILES = Path(__file__).parents[2] / "docs" / "bench" / "profiles"
MS = 1_000_000


def staged(first: tuple[int, ...], second: tuple[int, ...]) -> ModelProfile:
    whole = tuple(map(sum, zip(first, second, strict=True)))
    return ModelProfile(whole, stages=(ModelProfile(first), ModelProfile(second)))


CASES = {
    **{name: halved(options.profile(str(PROFILES / f"{name}.json"), 8)) for name in ("mlp", "encoder", "resnet18")},
    "7 + 0.6 b": halved(linear(7, 0.6, 8)),
    "flat, then steep": staged((8 * MS,) * 8, tuple(size * MS for size in range(1, 9))),
    "steep, then flat": staged(tuple(size * MS for size in range(1, 9)), (8 * MS,) * 8),
}


@full
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("load", [0.9])
def test_adaptive_is_near_the_optimum(name: str, load: float) -> None:
    setup = Setup(CASES[name], load * CASES[name].peak)
    least = solve(*times(setup), load * CASES[name].peak).mean_ns
    assert least * (1 - 1e-9) <= exact(setup).mean_ns <= 1.05 * least


@full
@pytest.mark.parametrize(("name", "policy"), [("steep, then flat", "adaptive"), ("mlp", "no_wait")])
def test_the_exact_mean_is_that_of_the_simulator(name: str, policy: str) -> None:
    """The simulated policy counts arrivals instead of knowing the rate, which changes little at this load."""
    setup = Setup(CASES[name], 0.5 * CASES[name].peak, policy, requests=3_000, max_queue=1 << 20)
    assert run(setup)["mean_ms"] == pytest.approx(exact(setup).mean_ns / MS, rel=0.06)
