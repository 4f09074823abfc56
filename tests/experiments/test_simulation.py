"""The simulator's page: sections made again, commands timed with their memory, and live beside simulated."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

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
from loadtest.common.paths import DOCS, ROOT

MS = 1_000_000
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
    assert live_vs_sim_page.missed({"rows": [row]}) == ["30% of the peak: -50.0%"]


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
