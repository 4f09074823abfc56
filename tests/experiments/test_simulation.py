"""The simulator's page: sections made again, commands timed with their memory, and live beside simulated."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from app.bench.plan import Plan
from app.scheduler.estimates.profile import linear
from app.sim.fleet import Setup, run
from experiments.policies import live_vs_sim, live_vs_sim_page
from experiments.simulation import __main__ as simulation
from experiments.simulation import page, sections
from loadtest.common import command
from loadtest.common.paths import DOCS, ROOT

ABOVE = {"curve": {"0.1": 0.25, "0.2": -1e-13}}


def test_a_section_made_again_replaces_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are those of the documentation."""
    (name, *_) = sections.SECTIONS
    before = json.loads((DOCS / "simulation.json").read_text())
    monkeypatch.setattr(simulation, "SECTIONS", {**sections.SECTIONS, "optimum": lambda folder, say: {"above": ABOVE}})
    assert simulation.EXPERIMENT.main(["optimum", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "simulation.json").read_text())
    assert found["optimum"]["above"] == ABOVE
    assert found[name] == before[name]
    text = (tmp_path / "simulation.md").read_text()
    assert "| curve | 25.0% | 0.1 | 0.0% |" in text


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


ROW = {
    "case": "m json", "share": 0.3, "rate": 10.0, "requests": 9, "others": None, "batch": 2.0, "said_batch": 2.5,
    "p50_ms": 4.0, "said_p50_ms": 5.0, "p99_ms": 10.0, "said_p99_ms": None,
}  # fmt: skip


COSTS = {
    "case": "m json",
    "peak": 30.0,
    "http": {"call_us": 1, "batch_us": 2, "decode_us": 3, "group_us": 4, "path_us": 5},
}


def test_live_beside_what_size_says() -> None:
    assert live_vs_sim_page.off(ROW, "p50_ms") == 0.25
    assert live_vs_sim_page.said(ROW) == "5.00 (+25%), never settles"
    disturbed = {**ROW, "others": 0.5}
    data = {"cases": [{"rows": [ROW, disturbed, {**ROW, "others": 0.05, "said_p99_ms": 7.4, "said_p50_ms": 4.1}]}]}
    assert live_vs_sim_page.fill({"cases": [{**data["cases"][0], **COSTS}]})["verdict"].startswith(
        "Of the other 4 figures 2"
    )
    assert live_vs_sim_page.missed(data) == [
        "m json, 30% of the peak: p99 +inf%",
        "m json, 30% of the peak: p99 -26.0%",
    ]


def test_what_is_compared_is_one_replica_of_what_size_suggests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each case has a model and requests that exist, and the quietest of several tries counts."""
    known = live_vs_sim.cases(tmp_path)
    assert tuple(known) == live_vs_sim.CASES
    live_vs_sim.write_bert(tmp_path)
    assert all(case.data is None or case.data.is_file() for case in known.values())
    asked: list[str] = []

    def starling(*arguments: str, profile_dir: Path) -> command.Ran:
        asked.extend(arguments)
        return command.Ran(json.dumps({"predicted": []}), 0, 0)

    monkeypatch.setattr(command, "starling", starling)
    chosen = live_vs_sim.EXPERIMENT.parse(["--tries", "3"])
    compared = live_vs_sim.Comparison(known["mlp binary"], chosen, tmp_path, print)
    assert compared.size(12.5, 3) == {"predicted": []}
    assert asked[:9] == ["size", "--model", "mlp", "--models", "bench", "--rate", "12.5", "--p99-ms", "1e6"]
    tries = iter([{**ROW, "others": cores} for cores in (0.5, 0.2, 0.3)])
    assert compared.quietest(lambda: next(tries))["others"] == 0.2
    tries = iter([{**ROW, "others": cores} for cores in (0.05, 0.0)])
    assert compared.quietest(lambda: next(tries))["others"] == 0.05


def test_simulated_seeds_are_those_of_the_load_generator() -> None:
    """The same instants: what the generator sends in a second is what a setup of that many requests is fed with."""
    plan = Plan(url="localhost:1", model="m", rate=200)
    sent = plan.instants(200, 7, 1.0)
    setup = Setup(linear(1, 1, 4), 200, "no_wait", requests=len(sent), seed=7)
    assert np.concatenate(list(setup.instants())).tolist() == sent.tolist()
    assert run(setup)["requests"] == len(sent)


def test_the_documented_profile_is_the_example() -> None:
    """That the outputs of docs/simulation.md are those of its commands is seen where all documented commands run."""
    text = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    profile, *_ = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(profile) == sections.EXAMPLE
    kept = ROOT / "docs" / "bench" / sections.PROFILE
    assert json.loads(kept.read_text(encoding="utf-8")) == sections.EXAMPLE
