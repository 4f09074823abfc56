"""Serves calls with deadlines over HTTP: `python -m experiments.many deadlines_live`.

One worker, then two, of a model that sleeps 4 + 0.65 ms a row and takes no
processor, so that neither the workers nor the load generator slow one another. Servers differ in how they form batches
only. One is asked at a time, in turns, with Poisson arrivals at shares of the bound of staggered workers.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from experiments.common.live import in_turns, serving
from experiments.many.deadlines import MODERATE, SHARE, Device, saved
from loadtest.common.experiment import Data, Say
from loadtest.common.paths import ROOT
from loadtest.common.servers import Server
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import in_loop
from loadtest.generator.stats import Repeat

MODEL = "sleep"
SOURCE = ROOT / "loadtest" / "bench" / "models" / MODEL
DEVICE = Device(MODEL, 4, 0.65, 60, largest=32)
SECONDS, REPEATS = 4.0, 1  # of a run; runs of each cell
WORKERS = (1, 2)
LOADS = (0.3, 0.6, 0.8)
WAYS = {
    "deadline": (),
    "all that waits": ("--policy", "no_wait"),
    "window": ("--policy", "window"),
}


def by_deadline(folder: Path) -> Path:
    """A copy of the model that is served for deadlines."""
    copied = shutil.copytree(SOURCE, folder / MODEL)
    with (copied / "model.toml").open("a", encoding="utf-8") as file:
        file.write('objective = "deadline"\n')  # its last table is [batching]
    return copied


def flags(way: str, workers: int, folder: Path) -> Sequence[str]:
    source = by_deadline(folder) if way == "deadline" else SOURCE
    capacities = ",".join(["32"] * workers)
    return ("--model", f"{MODEL}={source}", "--threads", "1", "--workers", capacities, *WAYS[way])


def plan_of(server: Server, rate: float) -> BenchPlan:
    return BenchPlan(
        url=server.url, model=MODEL, payload="binary", rate=rate, duration_s=SECONDS, repeats=REPEATS, warmup_s=1.0,
        connections=512, deadline_ms=DEVICE.deadline_ms,
    )  # fmt: skip


def figures(runs: list[Repeat]) -> dict[str, float]:
    """Share of calls answered in time by the server's clock, device ms and rows a batch of these, p99 of the client."""
    asked = sum(len(run.latency_ns) for run in runs)
    answered = [(run.latency_ns >= 0) & (run.batch > 0) & (run.compute_ns > 0) for run in runs]
    rows = sum(int(mine.sum()) for mine in answered)
    busy_ns = sum(
        float((run.compute_ns[mine] / run.batch[mine]).sum()) for run, mine in zip(runs, answered, strict=True)
    )
    units = sum(float((1 / run.batch[mine]).sum()) for run, mine in zip(runs, answered, strict=True))
    lags = sorted(lag for run in runs for lag in run.lag_ns.tolist())
    return {
        "in_time": sum(len(run.completed) for run in runs) / asked,
        "row_ms": busy_ns / rows / 1e6 if rows else float("nan"),
        "batch": rows / units if units else float("nan"),
        "lag_ms": lags[int(0.99 * len(lags))] / 1e6,
    }


def measure(say: Say) -> Data:
    """The same over HTTP."""
    cells = []
    for workers in WORKERS:
        bound, rows = DEVICE.bound(workers)
        with (
            tempfile.TemporaryDirectory(prefix="starling-") as folder,
            serving({way: flags(way, workers, Path(folder)) for way in WAYS}) as servers,
        ):
            for load in LOADS:
                plans = {way: plan_of(server, round(load * bound, 1)) for way, server in servers.items()}
                ways = {way: figures(runs) for way, runs in in_loop(in_turns(plans)).items()}
                cells.append({"workers": workers, "bound": bound, "rows": rows, "load": load, "ways": ways})
                for way, cell in ways.items():
                    say(f"{workers} x, load {load:g}, {way}: {cell['in_time']:.2%}, {cell['row_ms']:.2f} ms a row")
    return {"seconds": SECONDS, "repeats": REPEATS, "deadline_ms": DEVICE.deadline_ms, "cells": cells}


def missed(data: Data) -> list[str]:
    lines = []
    for cell in data["cells"]:
        ways, name = cell["ways"], f"{cell['workers']} workers, load {cell['load']:g}"
        if cell["load"] <= MODERATE and ways["deadline"]["in_time"] < SHARE:
            lines.append(f"{name}: {ways['deadline']['in_time']:.2%} in time")
        if saved(ways) <= 0:
            lines.append(f"{name}: {saved(ways):.0%} device time saved")
    return lines
