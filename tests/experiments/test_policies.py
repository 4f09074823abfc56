"""Policies compared: their distances to the optimum."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.scheduler.estimates.profile import Profile
from experiments.common.simulated import Policy, Server, stepped
from experiments.policies import learned, simulated
from experiments.policies.learning import Case, Evidence, Phases, Served
from planner.profile_times import linear

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


# What it costs that batch times are learned.


def test_the_page_of_learned_times_is_made_of_a_tiny_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    curve = Profile((7_000_000, 8_000_000, 16_000_000, 10_000_000), concurrency_ns={2: linear(10, 1, 4).batch_ns})
    tiny = {
        "curves": lambda: {"made up": curve}, "FIRST_S": 2.0, "COLD_S": 4.0, "WINDOW_S": 1.0, "MINUTE_S": 1.0,
        "BURSTS_S": 20.0, "REPEATED": 1, "SLOWER": Phases((0.0, 2.0, 4.0), (1.0, 1.5, 1.0)),
        "SECTIONS": {name: one._replace(loads=(0.6,)) for name, one in learned.SECTIONS.items()},
    }  # fmt: skip
    for name, value in tiny.items():
        monkeypatch.setattr(learned, name, value)
    assert learned.EXPERIMENT.main(["--seeds", "1", "--out", str(tmp_path)]) in (0, 1)
    data = json.loads((tmp_path / "learned.json").read_text())
    counts = {name: len(data[name]) for name in learned.SECTIONS}
    assert counts == {"cold": 3, "two": 1, "near": 2, "gain": 2, "bursts": 3, "slower": 2}


def test_a_device_slows_batches_from_a_moment_on_by_noise_that_all_policies_meet() -> None:
    """A server that is told everything is as good on a slower device as on a slower clock."""
    profile = linear(7, 0.6, 8)
    rate = Phases((0.0,), (0.5 * profile.peak,))
    instants, quiet = rate.arrivals(20.0, 1), Evidence(1e-3)
    usual = Served(Case(profile, quiet, instants, rate), "told").latency_ms()
    slow = Phases((0.0, 10.0), (1.0, 1.5))
    slower = Served(Case(profile, quiet, instants, rate, slow=slow), "told").latency_ms()
    early = instants < 9.5e9
    assert (slower[early] == usual[early]).all()
    assert slower[instants > 10.5e9].mean() > 1.4 * usual[instants > 10.5e9].mean()
    lone = Served(Case(profile, quiet, instants[:1], rate, slow=Phases((0.0,), (1.5,))), "no_wait").latency_ms()
    assert lone[0] == pytest.approx(1.5 * 7.6, rel=0.01)
