"""`starling bench` as a user runs it, against a server that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app.bench.plan import Plan

from .server import PATIENCE_S, ROOT, Server


def bench(server: Server, *options: str) -> subprocess.CompletedProcess[str]:
    # on a machine that is busy with other tests the client is late: that is not what is tested here
    quick = ("--duration", "0.4", "--warmup", "0.1", "--repeats", "2", "--max-lag-ms", "100000")
    command = [sys.executable, "-m", "app", "bench", server.host, *quick, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3 * PATIENCE_S, check=False)


def printed(server: Server, *options: str) -> dict[str, Any]:
    done = bench(server, *options, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("payload", ["json", "binary"])
def test_open_loop(server: Server, tmp_path: Path, payload: str) -> None:
    path = tmp_path / "plot.png"
    found = printed(server, "--model", "echo", "--rate", "100", "--payload", payload, "--plot", str(path))
    plan = Plan(url="a", model="echo", rate=100)
    intended = sum(len(plan.instants(100, seed, 0.4)) for seed in (0, 1))
    assert found["requests"] == found["completed"] == found["status"]["200"] == intended
    assert found["errors"] == {}
    assert found["mean_batch"] >= 1
    assert 0 < found["compute_ms"] < found["server_ms"] < found["mean_ms"]
    assert path.exists()


def test_lengths_and_closed_loop(server: Server) -> None:
    found = printed(server, "--model", "tokens", "--concurrency", "2", "--lengths", "lognormal:3:1:4")
    assert found["completed"] == found["requests"] > 4
    assert found["mode"] == "closed"


def test_unknown_model_is_one_line(server: Server) -> None:
    done = bench(server, "--model", "nobody", "--rate", "5")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("starling: url: expected a V2 server with model 'nobody', got status 404")
    assert done.stderr.count("\n") == 1
