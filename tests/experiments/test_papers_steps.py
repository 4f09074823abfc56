"""Steps, live and simulated: the same instants go both ways, no request changes its step or is lost unseen."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from app.bench.plan import Plan
from app.bench.run import Session
from app.bench.stats import Repeat
from app.scheduler.estimates.profile import ModelProfile, linear, parse
from experiments.common.simulated import Policy, Server
from experiments.papers import steps, steps_live
from experiments.papers.schedules import SCHEDULES, Schedule
from experiments.papers.steps_runs import (
    PlannedRun,
    Sent,
    alternate,
    capacities,
    measured,
    planned_run,
    simulated,
)
from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import starling

MS = 1_000_000
SHORT = Schedule("short", ((3, 0.5), (2, 1.0)))
FIVE = PlannedRun(np.arange(6) * 10 * MS, 1, (3, 2))  # one to warm up, then both steps of SHORT
PROFILE = linear(4, 1, 32)


def repeat(planned: PlannedRun, latencies_ms: list[float], **more: Any) -> Repeat:
    """Answers to the requests of a run; below 0 is none. Of each ms of latency 1 is HTTP, 4 the batch."""
    latency = np.array([round(value * MS) if value >= 0 else -1 for value in latencies_ms], np.int64)
    count, right = len(latency), latency >= 0
    values: dict[str, Any] = {
        "seed": 0, "duration_s": 1.0, "elapsed_s": 1.0, "intended_ns": planned.instants, "latency_ns": latency,
        "wait_ns": np.zeros(count, np.int64), "lag_ns": np.full(count, MS // 2),
        "compute_ns": np.where(right, 4 * MS, -1), "server_ns": np.where(right, latency, -1),
        "queue_ns": np.where(right, latency - 5 * MS, -1), "batch": np.where(right, 1, 0), "status": Counter(),
        "errors": +Counter({"status 503": int((~right).sum())}), "examples": {}, "unchecked": 0,
    }  # fmt: skip
    return Repeat(**{**values, **more})


# the requests


@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
def test_what_is_sent_is_what_is_simulated(schedule: Schedule, tmp_path: Path) -> None:
    """To the nanosecond, through the file that the load generator reads."""
    planned = planned_run(schedule, 317.3, 3)
    plan = Plan(url="localhost:1", model="m", arrivals=steps_live.recorded(planned, tmp_path / "trace"))
    sent = plan.instants(None, 0, (int(planned.instants[-1]) + 1) / 1e9)
    assert sent.tolist() == planned.instants.tolist()
    assert planned.instants[0] == 0


# runs


async def test_policies_alternate_and_meet_the_same_requests() -> None:
    calls: list[tuple[str, PlannedRun, int]] = []

    async def send(policy: str, planned: PlannedRun, seed: int) -> Sent:
        calls.append((policy, planned, seed))
        return Sent(repeat(planned, [5.0] * 5 + [-1]))

    plans = [{"a": FIVE, "b": replace(FIVE, warm=2, sizes=(2, 2))}, {"a": FIVE, "b": FIVE}]
    said: list[str] = []
    found = await alternate(("x", "y"), plans, send, said.append)
    order = [(policy, seed) for policy, _, seed in calls]
    assert order == [("x", 0), ("y", 0), ("x", 0), ("y", 0), ("y", 1), ("x", 1), ("y", 1), ("x", 1)]
    assert calls[0][1] is calls[1][1] is plans[0]["a"]
    assert {key: len(runs) for key, runs in found.items()} == {(n, p): 2 for n in "ab" for p in "xy"}
    assert said[0] == "seed 1 of 2, a: x 5.0 ms, 1 x status 503; y 5.0 ms, 1 x status 503"


def test_a_live_run_in_order_of_arrival_with_its_holes() -> None:
    run = measured(Sent(repeat(FIVE, [9, 8, -1, 7, 6, 30]), 0.25), FIVE, PROFILE)
    assert np.array_equal(run.latency_ms, [9, 8, np.nan, 7, 6, 30], equal_nan=True)
    assert np.array_equal(run.served_ms, [8, 7, np.nan, 6, 5, 29], equal_nan=True)
    assert run.failed == {"status 503": 1}
    assert (run.late_ms, run.others) == (0.5, 0.25)
    assert run.against == {1: pytest.approx(4 / 5)}  # a row took 4 ms, the profile says 5


def test_batches_count_once_however_many_requests_report_them() -> None:
    """Two rows in one batch of 8 ms, one alone in 4 ms; in the profile 6 and 5 ms, beside another unit 12 and 5."""
    planned = PlannedRun(np.arange(3) * MS, 0, (3,))
    both = {"batch": np.array([2, 2, 1]), "compute_ns": np.array([8, 8, 4]) * MS}
    data = PROFILE.to_dict() | {"concurrency": {"2": {"1": 5.0, "2": 12.0, "32": 40.0}}}
    run = measured(Sent(repeat(planned, [20, 20, 20], **both)), planned, parse(data))
    assert (run.rows, run.unit_ms) == (pytest.approx(1.5), pytest.approx(6))
    assert run.against == {1: pytest.approx(12 / 11), 2: pytest.approx(12 / 17)}


def test_the_simulator_runs_as_many_units_as_the_server() -> None:
    """Two requests at once: one after the other on one worker, beside one another on two."""
    planned = PlannedRun(np.array([0, 1, 1000 * MS, 1000 * MS + 1]), 2, (2,))
    shared = ModelProfile(PROFILE.batch_ns, concurrency_ns={2: PROFILE.batch_ns})
    alone = simulated(Server(Policy("no_wait"), shared, capacities("no_wait", 1), 1), planned)
    beside = simulated(Server(Policy("no_wait"), shared, capacities("no_wait", 2), 2), planned)
    assert alone.latency_ms.tolist() == [5, pytest.approx(10), 5, pytest.approx(10)]
    assert beside.latency_ms.tolist() == [5, 5, 5, 5]
    assert (beside.rows, beside.unit_ms) == (1, 5)


# the page


class FakeServers:
    """Sends into a simulated server; HTTP takes 1 ms, and `lost` says which request has no answer."""

    lost = -1

    def __init__(self, model: str, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def profile(self) -> tuple[ModelProfile, None]:
        return PROFILE, None

    def start(self) -> None: ...

    def run(self, plans: list[dict[str, PlannedRun]], say: Any) -> dict[tuple[str, str], list[Sent]]:
        found: dict[tuple[str, str], list[Sent]] = {}
        for runs in plans:
            for name, planned in runs.items():
                for policy in self.chosen.policies:
                    server = Server(Policy(policy, self.chosen.delay), PROFILE, capacities(policy, 1), 1)
                    latencies = simulated(server, planned).latency_ms + 1
                    if self.lost >= 0:
                        latencies[self.lost] = -1
                    found.setdefault((name, policy), []).append(Sent(repeat(planned, latencies.tolist())))
        return found


ARGUMENTS = ["--models", "mlp", "--policies", "no_wait", "window", "--rate", "200", "--threads", "1"]


def run_main(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[int, dict[str, Any], str]:
    monkeypatch.setattr(steps_live, "LiveServers", FakeServers)
    code = steps.EXPERIMENT.main([*ARGUMENTS, "--at-once", "1", "--out", str(tmp_path), *more])
    (data,) = json.loads((tmp_path / "steps.json").read_text())["studies"]
    return code, data, (tmp_path / "steps.md").read_text()


def test_the_whole_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake server is the simulator, so they agree but for HTTP; some 45 s a seed, of which two fit."""
    code, data, text = run_main(tmp_path, monkeypatch, "--minutes", "1.8")
    assert code == 0
    assert (tmp_path / "steps-mlp.png").read_bytes()[:4] == b"\x89PNG"
    assert data["seeds"] == 2
    climb = data["climb"]["window"]
    assert np.allclose(np.array(climb["live_ms"]) - 1, climb["simulated_ms"])
    assert np.allclose(climb["served_ms"], climb["simulated_ms"])
    assert len(climb["run"]["live"]) == 900
    assert "simulated is +0% off in the middle of 16 means (+0% to +0%)" in text


# a real server


@pytest.mark.e2e
async def test_a_real_server_gets_the_instants(tmp_path: Path) -> None:
    source = f"echo={ROOT / 'app' / 'models' / 'demo' / 'echo'}"
    flags = ("--model", source, "--threads", "1", "--profile-budget-s", "0", *steps_live.server_flags("window", 1, 2))
    planned = planned_run(SHORT, 200.0, 0, warm_s=0.05)
    with starling(flags) as server:
        server.wait_ready()
        plan = Plan(url=f"http://{LOOPBACK}:{server.port}", model="echo", payload="binary")
        async with Session(plan) as session:
            sent = await steps_live.send_at(session, planned, 0, tmp_path / "trace")
    run = measured(Sent(sent), planned, PROFILE)
    assert run.failed == {}
    assert len(planned.parts(run.latency_ms)) == 2
    assert (run.latency_ms > run.served_ms).all()
    assert run.served_ms[0] > 1.9  # nobody is there before it: it waits for the whole window of 2 ms
