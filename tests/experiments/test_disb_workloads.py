"""The workloads that are shipped: what the script writes, what the paper says, and a trace with the known figures."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.disb import generate
from experiments.disb.generate import APOLLO, FOLDER, MODELS, Client
from loadtest.disb.workload import Workload, read

#: By workload: real-time tasks, what they ask for per second, best-effort tasks.
TABLE = {
    "A": (1, 100.0, 1), "B": (1, 220.0, 1), "B-repository": (1, 0.0, 1), "C": (1, 100.0, 5), "D": (5, 100.0, 5),
    "E": (5, 100.0, 5), "REAL": (5, 0.0, 5),
}  # fmt: skip


def load(name: str) -> Workload:
    return read(FOLDER / f"{name}.json")


def test_the_files_are_what_the_script_writes() -> None:
    written = generate.workloads()
    assert {path.stem for path in FOLDER.glob("*.json")} == set(written) == set(TABLE)
    for name, workload in written.items():
        assert (FOLDER / f"{name}.json").read_text("utf-8") == generate.text(workload)


@pytest.mark.parametrize("name", TABLE)
def test_workload_is_the_papers(name: str) -> None:
    found = load(name)
    realtime, rate, best_effort = TABLE[name]
    assert found.time_s == (38 if name == "REAL" else 60)
    assert len(found.only("realtime").tasks) == realtime
    assert sum(task.load.frequency for task in found.only("realtime").tasks) == rate
    assert [task.load.kind for task in found.only("best_effort").tasks] == ["continuous"] * best_effort
    assert {task.model for task in found.tasks} <= set(MODELS)


@pytest.mark.parametrize("client", APOLLO, ids=lambda client: client.model)
def test_real_has_the_figures_of_the_apollo_trace(client: Client) -> None:
    (task,) = (one for one in load("REAL").only("realtime").tasks if one.model == client.model)
    gaps = np.diff(task.load.trace) / 1e6
    assert len(task.load.trace) == client.requests
    assert gaps.mean() == pytest.approx(client.gap_ms, rel=0.005)
    assert gaps.std() / gaps.mean() == pytest.approx(client.cv, abs=0.01)
    assert gaps.min() > 0
    if client.burst > 1:
        starts = np.array(task.load.trace).reshape(-1, client.burst) / 1e6
        assert (np.ptp(starts, axis=1) <= client.burst_ms + 1).all()
