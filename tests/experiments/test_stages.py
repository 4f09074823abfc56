"""Models in stages: units pushed ahead, adaptive against the whole model, and the optimum of two stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiers import full

from app.scheduler.estimates.profile import ModelProfile, linear
from app.scheduler.optimal import solver
from experiments.stages import ahead, sliced
from experiments.stages.two_stages import Action, evaluate, solve
from experiments.stages.two_stages_adaptive import exact, halved, times
from planner import option_values
from planner.fleet import Setup, run

# Handing units over ahead of time: all ways get the same arrivals.


def test_a_unit_pushed_within_the_time_is_near_the_better_way() -> None:
    """On a curve with a large fixed part early units are costly; the launch is hidden all the same."""
    found = ahead.cell(("7 + 0.6 b", 0.6, 1, 4000))
    (depth_1,), (at_once,), (within,) = found["depth_1"], found["at_once"], found["ahead"]
    assert at_once > 1.3 * depth_1
    assert within < depth_1  # by less than the launch of each unit
    assert within > depth_1 - 2 * ahead.LAUNCH_NS / 1e6


# `adaptive` on stages against the whole model: a page made from a tiny run.


PROFILE = linear(7, 0.6, 8)


def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced, "cases", lambda: {"cut": sliced.equal(PROFILE, 2)})
    monkeypatch.setattr(sliced, "LOADS", (0.3, 0.9))
    arguments = ["--requests", "300", "--seeds", "2", "--out", str(tmp_path)]
    assert sliced.EXPERIMENT.main(arguments) == 0
    text = (tmp_path / "sliced.md").read_text()
    assert "| cut | " in text


# The optimum of two stages against the one-stage solver.


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


# The exact mean of a policy between two stages: that of the simulator, and `adaptive`'s distance to the optimum.


PROFILES = Path(__file__).parents[2] / "docs" / "bench" / "profiles"
MS = 1_000_000


def staged(first: tuple[int, ...], second: tuple[int, ...]) -> ModelProfile:
    whole = tuple(map(sum, zip(first, second, strict=True)))
    return ModelProfile(whole, stages=(ModelProfile(first), ModelProfile(second)))


CASES = {
    **{
        name: halved(option_values.profile(str(PROFILES / f"{name}.json"), 8))
        for name in ("mlp", "encoder", "resnet18")
    },
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
