"""The table of distances to the optimum: its estimator, its delays, and the page from a tiny run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from app.scheduler.estimates.profile import linear
from app.scheduler.optimal import solver as optimal
from experiments.common.simulated import Policy, Server, stepped
from experiments.policies import simulated

PROFILE = linear(0.2, 3, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Profiles as `starling profile` writes them."""
    for name in simulated.MEASURED:
        data = PROFILE.to_dict() | {"model": name, "threads": 1, "power_w": {"idle": 1, "busy": 2}}
        data["batch_ms"] = {str(size): 0.2 + 3 * size for size in range(1, 33)}
        data["max_batch"] = 32
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    return tmp_path


def test_devices_are_three_measured_and_three_made_up(folder: Path) -> None:
    found = simulated.devices(folder)
    assert len(found) == 6
    assert found["mlp"].power is None  # device time is weighed for all alike
    flat = found["4 to 8 rows, then + 0.4"].batch_ns
    assert [flat[size - 1] / 1e6 for size in (1, 8, 9, 32)] == [4, 4, 4.4, 13.6]


def test_the_optimal_policy_run_is_as_good_as_solved() -> None:
    """The control variate's expectation is the exact value, also where the optimum holds rows for company."""
    profile = linear(7, 0.6, 8)
    rate = 0.3 * profile.peak
    for price in (0.0, 3e7):
        best, tables = simulated.best_tables(profile, rate, price)
        server = Server(Policy("adaptive"), profile, (8,), tables=tables)
        found = simulated.simulate(server, stepped([(20_000, rate)], 1), price)
        exact = (best.mean_ns + price * best.utilisation) / 1e6
        assert found["cost_ms"] == pytest.approx(exact, rel=0.02)
    assert 0 in best.table[1:]  # the price makes it wait


def test_distance_is_of_the_same_arrivals(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that is the optimum is no distance away, however far the run is off the exact value."""
    monkeypatch.setattr(simulated, "_LEAST_S", 5)
    scale = simulated.Scale(seeds=2, requests=300, more=1)
    cells = simulated.cell(("made up", PROFILE, 0.5, scale))
    assert [cell["name"] for cell in cells] == [contender.name for contender in simulated.CONTENDERS]
    by_name = {cell["name"]: cell for cell in cells}
    least = optimal.solve(PROFILE.batch_ns, 0.5 * PROFILE.peak).mean_ns / 1e6
    assert by_name["adaptive"]["optimum_ms"] == pytest.approx(least)
    assert abs(by_name["adaptive"]["above"]) < 0.05
    assert by_name["static"]["above"] > 1
    assert by_name["window"]["delay_ms"] in simulated.DELAYS
    assert by_name["no_wait"]["delay_ms"] is None


def test_page_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated, "LOADS", (0.3,))
    monkeypatch.setattr(simulated, "devices", lambda folder: {"made up": PROFILE, "other": linear(7, 0.6, 8)})
    monkeypatch.setattr(simulated, "_LEAST_S", 0)
    arguments = ["--seeds", "1", "--requests", "120", "--out", str(tmp_path)]
    assert simulated.EXPERIMENT.main(arguments) in (0, 1)  # so few requests may miss a target
    assert len(json.loads((tmp_path / "policies.json").read_text())["cells"]) == 2 * len(simulated.CONTENDERS)
    assert (tmp_path / "policies.png").read_bytes()[:4] == b"\x89PNG"
