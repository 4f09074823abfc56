"""The simulator's page: sections replace one another, commands are timed with their memory, live stands beside it."""

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
from loadtest.bench import live_vs_sim
from loadtest.bench.load import ROOT
from loadtest.bench.simulation import command, sections
from loadtest.bench.simulation.section import Section, keep

MS = 1_000_000


def section(name: str, *cells: str) -> Section:
    return Section(name, name.title(), "Text.", ("a", "b"), [cells], facts={"cpu": "some"})


def test_sections_replace_one_another_and_keep_their_order(tmp_path: Path) -> None:
    order = ("speed", "fleet")
    keep(section("fleet", "1", "2"), tmp_path, order)
    keep(section("speed", "3", "4"), tmp_path, order)
    keep(section("fleet", "5", "6"), tmp_path, order)
    page = (tmp_path / "simulation.md").read_text()
    assert page.index("## Speed") < page.index("## Fleet")
    assert "| 5 | 6 |" in page
    assert "| 1 | 2 |" not in page
    assert "`python -m loadtest.bench.simulation fleet`; cpu: some" in page
    assert list(json.loads((tmp_path / "simulation.json").read_text())) == ["speed", "fleet"]


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
    assert [ran.mib(0, 1), ran.mib(0.25, 0.5), ran.mib(0.75, 1), ran.mib(0.4, 0.5)] == [7, 7, 6, 0]


def test_optimum_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss that docs/simulation.md quotes for a curve with a peak at three rows."""
    monkeypatch.setattr(sections, "CURVES", {sections.MLP: sections.CURVES[sections.MLP]})
    monkeypatch.setattr(sections, "LOADS", (0.2,))
    made = sections.optimum(tmp_path, lambda text: None)
    assert made.rows == [["an MLP on one CPU thread", "24.0%", "0.2", "24.0%"]]


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
    assert (row.requests, row.client_ms, row.server_ms, row.simulated_ms) == (4, 5, 4, 2)
    assert row.off == -0.5
    assert row.profiled_ms == 2.5  # two requests in batches of one, two in a batch of two
    assert row.drift == pytest.approx(3 / 7)  # three batches of 1 ms, by the profile 2, 2 and 3 ms
    assert "NO" in row.cells()


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
    live_vs_sim.draw([{"share": 0.3, "live_ms": line, "simulated_ms": line}], path)
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_docs_quote_the_page() -> None:
    """The commands and outputs of docs/simulation.md are those of the page, and its profile is the example."""
    text = (ROOT / "docs" / "simulation.md").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "bench" / "simulation.md").read_text(encoding="utf-8")
    quoted = re.findall(r"```\n(\$ starling (?:simulate|optimum).*?)\n```", text, re.DOTALL)
    assert len(quoted) == 3
    assert [block for block in quoted if block not in page] == []
    (profile,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    assert json.loads(profile) == sections.EXAMPLE
    kept = ROOT / "docs" / "bench" / sections.PROFILE
    assert json.loads(kept.read_text(encoding="utf-8")) == sections.EXAMPLE
