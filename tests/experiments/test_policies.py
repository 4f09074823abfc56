"""Policies compared: their distances to the optimum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.scheduler.estimates.profile import linear
from experiments.common.simulated import Policy, Server, stepped
from experiments.policies import simulated

# The table of distances to the optimum: its estimator, and the page from a tiny run.


PROFILE = linear(0.2, 3, 8)


def test_the_optimal_policy_run_is_as_good_as_solved() -> None:
    """The control variate's expectation is the exact value, also where the optimum holds rows for company."""
    profile = linear(7, 0.6, 32)
    rate = 0.3 * profile.peak
    best, tables = simulated.best_tables(profile, rate)
    server = Server(Policy("adaptive"), profile, (32,), tables=tables)
    found = simulated.simulate(server, stepped([(20_000, rate)], 1))
    assert found["mean_ms"] == pytest.approx(best.mean_ns / 1e6, rel=0.02)
    assert 0 in best.table[1:]  # it waits


def test_the_page_of_distances_is_made_of_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "LOADS", (0.3,))
    monkeypatch.setattr(simulated, "devices", lambda folder: {"made up": PROFILE, "other": linear(7, 0.6, 8)})
    monkeypatch.setattr(simulated, "_LEAST_S", 0)
    arguments = ["--seeds", "1", "--requests", "120", "--out", str(tmp_path)]
    assert simulated.EXPERIMENT.main(arguments) in (0, 1)  # so few requests may miss a target
    assert len(json.loads((tmp_path / "policies.json").read_text())["cells"]) == 2 * len(simulated.CONTENDERS)
