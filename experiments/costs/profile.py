"""Samples where the server spends its time: `python -m experiments.costs.profile`.

py-spy reads the server's stacks from outside while 64 connections post V2 JSON to `echo`. The ten functions with the
largest own share of each busy thread are written to docs/bench/hot-path.json.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.bench import bodies
from loadtest.bench.session import CLIENT, Measured, Plan, Session
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.generator.load import CONNECTIONS, LoadError

RATE_HZ = 200  # at a much higher rate the pauses of sampling show in the figures
TOP = 10
LEAST_SHARE = 0.05  # threads below it are left out: idle ones, which some samples take for running
THREAD = re.compile(r"thread \([^)]*\):? ?(?P<name>.*)")
LINE = re.compile(r":\d+\)$")


@dataclass
class Thread:
    """The samples of one thread by function: innermost on the stack (`own`), and anywhere on it (`total`)."""

    name: str
    samples: int = 0
    own: Counter[str] = field(default_factory=Counter)
    total: Counter[str] = field(default_factory=Counter)

    def add(self, stack: list[str], count: int) -> None:
        self.samples += count
        self.own[stack[-1]] += count
        self.total.update(dict.fromkeys(stack, count))

    def top(self) -> list[tuple[str, float, float]]:
        """The most expensive functions with own and total share, most expensive first."""
        return [
            (name, count / self.samples, self.total[name] / self.samples) for name, count in self.own.most_common(TOP)
        ]


def parse(raw: str) -> list[Thread]:
    """Parse py-spy's raw lines, `thread (id): name;outer;...;inner count`; the busiest thread comes first."""
    threads: dict[str, Thread] = {}
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        head, *frames = stack.split(";")
        match = THREAD.match(head)
        if match and frames and count.isdigit():
            name = match["name"] or "unnamed"
            functions = [LINE.sub(")", frame) for frame in frames]
            threads.setdefault(name, Thread(name)).add(functions, int(count))
    return sorted(threads.values(), key=lambda thread: -thread.samples)


def sample(spy: str, pid: int, seconds: int) -> str:
    """py-spy's raw output for a process. Raises LoadError with its error message if it fails."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        out = Path(folder) / "raw.txt"
        command = [spy, "record", "--pid", str(pid), "--duration", str(seconds), "--rate", str(RATE_HZ)]
        command += ["--format", "raw", "--threads", "--function", "--output", str(out)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 30, check=False)
        except subprocess.TimeoutExpired as error:
            raise LoadError("py-spy did not end") from error
        if done.returncode or not out.exists():
            raise LoadError(f"py-spy failed (it must be allowed to trace processes): {done.stderr.strip()[-400:]}")
        return out.read_text(encoding="utf-8")


def profile(session: Session, spy: str, seconds: int) -> tuple[list[Thread], Measured]:
    """Sample the server under a load that begins before the sampling and ends after it."""
    request = session.request("echo", bodies.v2_json)
    server = session.starling()
    session.warm_up(server, request)
    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(session.load, server, request, seconds + 2.0)
        threads = parse(sample(spy, server.process.pid, seconds))
        return threads, load.result()


def busy(threads: list[Thread], seconds: int) -> list[Data]:
    """The threads that ran for at least LEAST_SHARE of the time."""
    shares = ((thread, thread.samples / (RATE_HZ * seconds)) for thread in threads)
    return [
        {"name": thread.name, "share": share, "top": thread.top()} for thread, share in shares if share >= LEAST_SHARE
    ]


def sampler() -> str:
    """The path of py-spy. Raises LoadError if it is not installed."""
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise LoadError("py-spy is not installed; install it into this environment with: pip install py-spy")
    return found


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=int, default=10, help="how long to sample, 1 to 60 [10]")
    parser.add_argument("--server", nargs="+", default=[], help="command of the server to sample")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    spy = sampler()
    seconds = max(1, min(chosen.seconds, 60))
    with Session(Plan(server=tuple(chosen.server))) as session:
        found, measured = profile(session, spy, seconds)
    run.facts["load"] = f"echo, V2 JSON, {CONNECTIONS} connections, sampled {RATE_HZ} times a second for {seconds} s"
    run.facts["rate"] = f"{measured.per_second:,.0f} requests/s while sampled ({CLIENT})"
    if measured.cpu_us is not None:
        run.facts["CPU a request"] = f"{measured.cpu_us:.1f} us"
    return {"per_second": measured.per_second, "threads": busy(found, seconds)}


PAGE = Page("hot-path", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.costs.profile", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
