"""Serves rows of different lengths over HTTP: `python -m experiments.stages.glue`. Writes docs/bench/glue.json.

A 6-layer encoder with lengths as in GLUE, in four servers that differ in how they fill batches only: `adaptive` by
length, `adaptive` by count (`reorder = false`), `no_wait`, which takes all that waits, and `adaptive` in buckets. One
server is asked at a time, in turns. First 64 connections in a closed loop, then Poisson arrivals at shares of what the
better way by count served. Batch times by length are measured first.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from app.scheduler.estimates.profile_format import parse
from experiments.common.live import in_turns, serving
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run, Say
from loadtest.common.page import Page
from loadtest.common.servers import MeasurementError, Server
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import in_loop
from loadtest.generator.stats import Repeat, percentile
from planner.drawn_lengths import Lengths

GLUE = "lognormal:14:0.75:4:128"  # tokens of a row
MODEL = "glue"
SOURCE = Path(__file__).parent / "models" / MODEL
CONNECTIONS = 64
SHARES = (0.3, 0.6, 0.9)
BODIES = 512  # different requests
#: Lines of `[batching]`, by way.
WAYS = {
    "by length": 'policy = "adaptive"',
    "by count": 'policy = "adaptive"\nreorder = false',
    "all that waits": 'policy = "no_wait"',
    "buckets": 'policy = "adaptive"\nlength_buckets = [8, 16, 24, 32, 48, 64]',
}
BY_COUNT = ("by count", "all that waits")
_TIMEOUT_S = 60.0  # of a request: long enough to drain the queue of an overloaded run


class Scene:
    """The model's folders, the requests and the profiles, in a folder of their own."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        self.folder = folder
        self.data = folder / "requests.json"
        self.data.write_text(json.dumps(requests(chosen.seed)), encoding="utf-8")
        for way, lines in WAYS.items():
            copy = self.source(way)
            shutil.copytree(SOURCE, copy)
            toml = copy / "model.toml"
            toml.write_text(f"{toml.read_text(encoding='utf-8')}{lines}\n", encoding="utf-8")

    def source(self, way: str) -> Path:
        return self.folder / way.replace(" ", "-") / MODEL

    def profile(self) -> None:
        """Measure batch times into the folder where the servers look for them."""
        chosen = self.chosen
        found = command.profile(
            self.folder / "profiles", MODEL, "--model", f"{MODEL}={self.source('by length')}", "--threads",
            str(chosen.threads), "--workers", "1", "--budget-s", str(chosen.budget),
        )  # fmt: skip
        if not parse(found).by_length:
            raise MeasurementError("the profile has no times by length, without which nothing is picked by length")

    def flags(self, way: str) -> Sequence[str]:
        return (
            "--model", f"{MODEL}={self.source(way)}", "--threads", str(self.chosen.threads), "--workers", "32",
            "--profile-dir", str(self.folder / "profiles"), "--profile-budget-s", "0",
        )  # fmt: skip

    def plan(self, server: Server, **options: Any) -> BenchPlan:
        return BenchPlan(
            url=server.url, model=MODEL, payload="binary", data=self.data,
            seed=self.chosen.seed, duration_s=self.chosen.seconds, repeats=self.chosen.repeats, warmup_s=1.0,
            timeout_s=_TIMEOUT_S, connections=1024, max_lag_ms=20.0, **options,
        )  # fmt: skip


def requests(seed: int) -> list[dict[str, Any]]:
    """Bodies of one row each, as a JSON file of `starling bench --data` has them."""
    random = np.random.default_rng([seed, 1])
    found = []
    for length in Lengths(GLUE, [seed]).draw(BODIES).tolist():
        values = {"ids": random.integers(0, 8_000, length).tolist(), "mask": [1] * length}
        inputs = [
            {"name": name, "datatype": "INT64", "shape": [1, length], "data": data} for name, data in values.items()
        ]
        found.append({"inputs": inputs})
    return found


def figures(runs: list[Repeat]) -> dict[str, Any]:
    """Rows per second by run; mean and 99 % latency in ms of all runs; errors."""
    completed = np.concatenate([run.completed for run in runs])
    p99 = percentile(completed, 0.99)
    return {
        "rows_per_s": [len(run.completed) / run.elapsed_s for run in runs],
        "mean_ms": [float(run.completed.mean()) / 1e6 for run in runs],
        "p99_ms": float("nan") if p99 is None else p99,
        "errors": sum(sum(run.errors.values()) for run in runs),
    }


def compared(scene: Scene, servers: Mapping[str, Server], say: Say, **options: Any) -> dict[str, Any]:
    """The figures of each way under the same load."""
    runs = in_loop(in_turns({way: scene.plan(server, **options) for way, server in servers.items()}))
    found = {way: figures(given) for way, given in runs.items()}
    for way, cell in found.items():
        say(f"{options}: {way}: {np.mean(cell['rows_per_s']):.1f} rows/s, mean {np.mean(cell['mean_ms']):.1f} ms")
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a run [5]")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each cell [2]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a unit [1]")
    parser.add_argument("--budget", type=float, default=40.0, help="seconds to measure batch times [40]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name:
        scene = Scene(chosen, Path(name))
        scene.profile()
        run.say("batch times are measured")
        with serving({way: scene.flags(way) for way in WAYS}) as servers:
            closed = compared(scene, servers, run.say, concurrency=CONNECTIONS)
            peak = max(float(np.mean(closed[way]["rows_per_s"])) for way in BY_COUNT)
            loads = {str(share): compared(scene, servers, run.say, rate=round(share * peak, 1)) for share in SHARES}
    settings = {
        "seconds": chosen.seconds, "repeats": chosen.repeats, "threads": chosen.threads, "connections": CONNECTIONS,
        "lengths": GLUE,
    }  # fmt: skip
    return {
        "settings": settings, "closed": closed, "peak": peak, "loads": loads,
    }  # fmt: skip


CLOSED = 1.8  # of the rows per second by count, at least
HALF = 0.5  # of the mean by count at the highest load, at most


def gain(data: Data) -> float:
    """Rows per second by length over those of the better way by count."""
    return fmean(data["closed"]["by length"]["rows_per_s"]) / float(data["peak"])


def mean_ratio(cells: Mapping[str, Any]) -> float:
    """The mean latency by length over that by count."""
    return fmean(cells["by length"]["mean_ms"]) / fmean(cells["by count"]["mean_ms"])


def missed(data: Data) -> list[str]:
    lines = [] if gain(data) >= CLOSED else [f"closed loop: {gain(data):.2f} x, not {CLOSED:g} x"]
    for load, cells in data["loads"].items():
        ratio, tails = mean_ratio(cells), cells["by length"]["p99_ms"] / cells["by count"]["p99_ms"]
        if ratio >= 1 or tails >= 1:
            lines.append(f"load {load}: mean {ratio:.2f} x, 99 % {tails:.2f} x, not lower")
        if load == list(data["loads"])[-1] and ratio > HALF:
            lines.append(f"load {load}: mean {ratio:.2f} x, not {HALF:g} x")
    return lines


PAGE = Page("glue", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.stages.glue", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
