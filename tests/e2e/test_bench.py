"""`starling bench` as a user runs it, against a server that runs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from app.bench.plan import Plan

from .server import PATIENCE_S, ROOT, Server


def test_open_loop(server: Server) -> None:
    # on a machine that is busy with other tests the client is late: that is not what is tested here
    quick = ("--duration", "0.4", "--warmup", "0.1", "--repeats", "2", "--max-lag-ms", "100000", "--json")
    command = [sys.executable, "-m", "app", "bench", server.host, "--model", "echo", "--rate", "100", *quick]
    done = subprocess.run(
        [*command, "--payload", "binary"], cwd=ROOT, capture_output=True, text=True,
        timeout=3 * PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    plan = Plan(url="a", model="echo", rate=100)
    intended = sum(len(plan.instants(100, seed, 0.4)) for seed in (0, 1))
    assert found["requests"] == found["completed"] == found["status"]["200"] == intended
    assert found["errors"] == {}
    assert 0 < found["compute_ms"] < found["server_ms"] < found["mean_ms"]
