"""Sends the same loads with wrk if it is installed: a client in C is less likely to be the bottleneck than ours."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path

from loadtest.bench.load import TIMEOUT_S, Load, LoadError, Result
from loadtest.common.paths import LOOPBACK

SCRIPT = Path(__file__).with_name("wrk.lua")


def installed() -> bool:
    return shutil.which("wrk") is not None


def able(load: Load) -> bool:
    """Whether wrk can run `load`. To compare answers or keep headers it would run Lua for each request."""
    return load.answer is None and not load.timed


def run(load: Load) -> Result:
    """Run `load` with its seconds rounded up. Latencies are those of all answers. Raises LoadError if wrk fails."""
    if not able(load):
        raise ValueError("wrk can neither check answers nor keep what the server says of its times")
    seconds = math.ceil(load.seconds)
    with tempfile.NamedTemporaryFile(prefix="starling-bench-") as body:
        body.write(load.request.body)
        body.flush()
        # One thread: the servers here have one loop each, and a second thread would take a core from them.
        command = ["wrk", "-t1", f"-c{load.connections}", f"-d{seconds}s", "--timeout", f"{TIMEOUT_S:g}s"]
        command += ["-s", str(SCRIPT), f"http://{LOOPBACK}:{load.port}{load.request.path}", "--", body.name]
        command.append("refusals" if load.refusals else "")
        command += [text for pair in load.request.headers for text in pair]
        limit_s = seconds + 2 * TIMEOUT_S
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        except subprocess.TimeoutExpired as error:
            raise LoadError(f"wrk did not end within {limit_s:g} s") from error
    return parse(done.stdout, done.stderr)


def parse(stdout: str, stderr: str = "") -> Result:
    """Parse the result that the Lua script prints. Raises LoadError if there is none."""
    line = next((line for line in stdout.splitlines() if line.startswith("RESULT ")), None)
    if line is None:
        raise LoadError(f"wrk gave no result: {(stderr or stdout).strip()[-500:]}")
    fields = json.loads(line.removeprefix("RESULT "))
    failed = {kind: count for kind, count in fields["failed"].items() if count}
    return Result(
        requests=fields["requests"],
        refused=fields["refused"],
        seconds=fields["us"] / 1e6,
        p50_ms=fields["p50_us"] / 1e3,
        p90_ms=fields["p90_us"] / 1e3,
        p99_ms=fields["p99_us"] / 1e3,
        failed=failed,
    )
