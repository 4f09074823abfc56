"""The simulator's page: sections replace one another, commands are timed with their memory, live stands beside it."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.bench.plan import Plan
from app.bench.run import Result
from app.bench.stats import Repeat
from app.scheduler.estimates.profile import linear
from app.sim.fleet import Setup, run
from experiments.policies import live_vs_sim, live_vs_sim_page
from experiments.simulation import __main__ as simulation
from experiments.simulation import page, sections
from loadtest.common import command
from loadtest.common.paths import ROOT

MS = 1_000_000


def test_sections_replace_one_another_and_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def optimum(folder: Path, say: Any) -> dict[str, Any]:
        made.append("optimum")
        return {"above": {f"curve {len(made)}": {"0.1": 0.25, "0.2": -1e-13}}}

    def sizing(folder: Path, say: Any) -> dict[str, Any]:
        return {"profile": "p.json", "shell": ["$ starling"]}

    monkeypatch.setattr(simulation, "SECTIONS", {"sizing": sizing, "optimum": optimum})
    for names in (["optimum"], ["sizing"], ["optimum"]):
        assert simulation.EXPERIMENT.main([*names, "--out", str(tmp_path)]) == 0
    text = (tmp_path / "simulation.md").read_text()
    assert text.index("## Sizing") < text.index("## Serving all that waits")
    assert "| curve 2 | 25.0% | 0.1 | 0.0% |" in text
    assert "curve 1" not in text
    assert "`python -m experiments.simulation optimum`; date: " in text
    assert list(json.loads((tmp_path / "simulation.json").read_text()))[:2] == ["sizing", "optimum"]


def test_command_is_timed_and_what_it_printed_kept() -> None:
    ran = command.starling("simulate", "--profile", "linear:1+1b", "--policy", "no_wait", "--load", "0.5",
                           "--requests", "100", "--json")  # fmt: skip
    assert ran.cell["completed"] == 100
    assert ran.cpu_s > 0
    assert ran.wall_s > 0


def test_command_that_fails_says_why() -> None:
    with pytest.raises(command.CommandError, match="profile: expected a file or linear"):
        command.starling("simulate", "--load", "0.5")


def test_memory_of_a_process_and_of_shares_of_a_run() -> None:
    assert command.resident_mib(os.getpid()) > 10
    ran = command.Ran("", 10.0, 9.0, [(1, 5.0), (3, 7.0), (9, 6.0)])
    assert ran.peak_mib == 7
    told = {"wall_s": ran.wall_s, "samples": ran.samples}
    assert [page.memory_mib(told, *part) for part in ((0.25, 0.5), (0.75, 1), (0.4, 0.5))] == [7, 6, 0]


def test_optimum_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss that docs/simulation.md quotes for a curve with a peak at three rows."""
    monkeypatch.setattr(sections, "CURVES", {sections.MLP: sections.CURVES[sections.MLP]})
    monkeypatch.setattr(sections, "LOADS", (0.2,))
    made = sections.optimum(tmp_path, lambda text: None)
    assert "| an MLP on one CPU thread | 24.0% | 0.2 | 24.0% |" in page.optimum(made)[-1]


def repeat(seed: int, server_ns: list[int], batch: list[int]) -> Repeat:
    count = len(server_ns)
    server = np.array(server_ns, np.int64)
    zeros = np.zeros(count, np.int64)
    return Repeat(
        seed=seed, duration_s=1, elapsed_s=1, intended_ns=zeros, latency_ns=server + MS, wait_ns=zeros, lag_ns=zeros,
        compute_ns=zeros + MS, server_ns=server, queue_ns=server - MS, batch=np.array(batch, np.int64),
        status=Counter({200: count}), errors=Counter(), examples={}, unchecked=0,
    )  # fmt: skip


def test_live_beside_simulated() -> None:
    profile = linear(1, 1, 4)
    plan = Plan(url="localhost:1", model="m", rate=100)
    live = Result(plan, (repeat(0, [2 * MS, 4 * MS], [1, 1]), repeat(1, [6 * MS, 4 * MS], [2, 2])), 1)
    setup = Setup(profile, 100, "no_wait", arrivals="uniform")
    tally, quantiles = live_vs_sim.simulate(setup, [2, 3])
    assert (tally.requests, tally.completed) == (5, 5)
    assert quantiles == [2] * 99  # one row at a time, alone
    row = live_vs_sim.compare(0.3, live, tally, tally, profile)
    assert [row[name] for name in ("requests", "client_ms", "server_ms", "simulated_ms")] == [4, 5, 4, 2]
    assert live_vs_sim_page.off(row) == -0.5
    assert row["profiled_ms"] == 2.5  # two requests in batches of one, two in a batch of two
    assert row["drift"] == pytest.approx(3 / 7)  # three batches of 1 ms, by the profile 2, 2 and 3 ms
    assert "NO" in live_vs_sim_page.cells(row)
    assert live_vs_sim_page.missed({"rows": [row]}) == ["30% of the peak: -50.0%"]


def compared(server_ms: float, simulated_ms: float, **more: object) -> Any:
    """A row of one load."""
    row = dict.fromkeys(live_vs_sim_page.Row.__annotations__, 1.0)
    return row | {"share": 0.6, "server_ms": server_ms, "simulated_ms": simulated_ms, "others": None} | more


def test_page_says_of_the_control_what_its_figures_say(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    settings = {"model": "m", "repeats": 3, "seconds": 5, "slo_ms": 200}
    whole: Any = {
        "settings": settings, "facts": {}, "peak": 100, "rows": [compared(10, 9)], "drift_ms": [4.5, 6],
        "curves": [{"share": 0.6, "live_ms": [1.0] * 99, "simulated_ms": [1.0] * 99}],
        "control": {
            "settings": settings, "peak": 50, "curves": [],
            "rows": [compared(100, 97.5, handover_ms=0.15, profiled_handover_ms=0.125), compared(100, 96)],
        },
    }  # fmt: skip
    live_vs_sim_page.write(whole, tmp_path)
    text = (tmp_path / "live-vs-sim.md").read_text("utf-8")
    assert "between 4.50 and 6.00 ms" in text
    assert "of 2 loads 1 is." in text
    assert "within 15%" in text.split("## ")[0]
    assert "within 3%" in text.split("## ")[1]
    assert "| 0.150 / 0.125 |" in text
    assert live_vs_sim_page.missed(whole) == ["control, 60% of the peak: -4.0%"]
    for key in ("control", "drift_ms"):
        whole.pop(key)
    live_vs_sim_page.write(whole, tmp_path)
    text = (tmp_path / "live-vs-sim.md").read_text("utf-8")
    assert "drift" not in text
    assert live_vs_sim_page.missed(whole) == []


def test_simulated_seeds_are_those_of_the_load_generator() -> None:
    """The same instants: what the generator sends in a second is what a setup of that many requests is fed with."""
    plan = Plan(url="localhost:1", model="m", rate=200)
    sent = plan.instants(200, 7, 1.0)
    setup = Setup(linear(1, 1, 4), 200, "no_wait", requests=len(sent), seed=7)
    assert np.concatenate(list(setup.instants())).tolist() == sent.tolist()
    assert run(setup)["requests"] == len(sent)


def test_plot_of_quantiles(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    line = list(np.linspace(1, 9, 99))
    path = tmp_path / "plot.png"
    live_vs_sim_page.draw([{"share": 0.3, "live_ms": line, "simulated_ms": line}], path)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_the_documented_profile_is_the_example() -> None:
    """That the outputs of docs/simulation.md are those of its commands is seen where all documented commands run."""
    text = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    profile, *_ = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(profile) == sections.EXAMPLE
    kept = ROOT / "docs" / "bench" / sections.PROFILE
    assert json.loads(kept.read_text(encoding="utf-8")) == sections.EXAMPLE
