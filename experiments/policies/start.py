"""Compares `adaptive` with `no_wait` after an ordinary start: `python -m experiments.policies.start`.

Writes docs/bench/policies-start.md and .json; takes about half an hour.
Servers of both policies start with empty folders of profiles and are left alone, so that each measures its model while
it is idle. Under `busy` a process keeps one core busy from before the start until the load begins. Then both get the
same arrivals of the same seeds in turns, at shares of the peak of `no_wait`: one worker of one thread, binary, Poisson.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median

from experiments.common.live import in_turns, peak_rate
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import ROOT, ZOO
from loadtest.common.servers import Server, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import in_loop
from loadtest.generator.stats import Repeat

SOURCES = {"mlp": ZOO / "mlp", "encoder": ZOO / "encoder", "digits": ROOT / "app" / "models" / "demo" / "digits"}
SHARES = (0.3, 0.6, 0.85)
STARTS = ("quiet", "busy")
POLICIES = ("adaptive", "no_wait")
CONFIDENCE = 0.95
TARGET = 1.01
LARGEST = 32  # rows
SLO_MS = 200.0
TRY_S = 5.0  # of each rate tried for the peak
TIMEOUT_S = 60.0  # of a request
_BUDGET_S = 5.0  # the server's default
Say = Callable[[str], None]


@contextmanager
def neighbour(busy: bool) -> Iterator[None]:
    """A process that keeps a core busy meanwhile, if `busy`."""
    if not busy:
        yield
        return
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def plan_of(model: str, server: Server, chosen: argparse.Namespace, rate: float | None = None) -> BenchPlan:
    return BenchPlan(
        url=server.url, model=model, payload="binary", seed=chosen.seed, rate=rate,
        duration_s=chosen.seconds, repeats=chosen.repeats, max_lag_ms=chosen.max_lag_ms, timeout_s=TIMEOUT_S,
    )  # fmt: skip


def mean_ms(repeat: Repeat) -> float:
    """Mean latency of the right answers; infinite if there is none."""
    done = repeat.completed
    return float(done.mean()) / 1e6 if len(done) else math.inf


def compare(model: str, start: str, chosen: argparse.Namespace, peaks: dict[str, float], say: Say) -> Iterator[Data]:
    """Start two servers and compare them at each share of the peak."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder, ExitStack() as stack:
        servers: dict[str, Server] = {}
        with neighbour(start == "busy"):
            for policy in POLICIES:
                flags = ("--model", f"{model}={SOURCES[model]}", "--max-batch", str(LARGEST), "--threads", "1",
                         "--policy", policy, "--workers", str(LARGEST), "--profile-budget-s", str(_BUDGET_S),
                         "--profile-dir", f"{folder}/{policy}")  # fmt: skip
                servers[policy] = stack.enter_context(starling(flags))
                servers[policy].wait_ready()
                time.sleep(chosen.idle)  # one after the other: they would disturb each other's measurements
        if model not in peaks:
            peaks[model] = peak_rate(plan_of(model, servers["no_wait"], chosen), SLO_MS, TRY_S, say)
        for share in chosen.shares:
            rate = share * peaks[model]
            runs = in_loop(in_turns({name: plan_of(model, one, chosen, rate) for name, one in servers.items()}))
            ours, other = (list(map(mean_ms, runs[policy])) for policy in POLICIES)
            cell = {"model": model, "start": start, "share": share, "peak": peaks[model]}
            yield {**cell, "adaptive_ms": ours, "no_wait_ms": other, "ratio": ratio_of(ours, other)}


def ratio_of(ours: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The median over the rounds of one over the other, between the ends of its 95 % interval.

    The interval is that of the order statistics (the sign test's), which assumes nothing of how rounds vary: a pause of
    the machine makes one round in ten five times as slow, on either side, and decides any mean.
    """
    ratios = sorted(one / another for one, another in zip(ours, other, strict=True))
    rounds, outside, beyond = len(ratios), 0, 0.0
    while (beyond := beyond + 2 * math.comb(rounds, outside) / 2**rounds) <= 1 - CONFIDENCE:
        outside += 1
    if not outside:  # too few rounds for any
        return 0.0, median(ratios), math.inf
    return ratios[outside - 1], median(ratios), ratios[-outside]


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    peaks = dict(zip(chosen.models, chosen.peaks, strict=False))
    settings = {"rounds": chosen.repeats, "seconds": chosen.seconds, "idle": chosen.idle}
    figures: Data = {"settings": settings, "cells": []}
    for model in chosen.models:
        for start in chosen.starts:
            for cell in compare(model, start, chosen, peaks, run.say):
                figures["cells"].append(cell)
                run.say(line(cell))
                run.keep(figures)
    return figures


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", choices=list(SOURCES), default=list(SOURCES))
    parser.add_argument("--starts", nargs="*", choices=STARTS, default=list(STARTS))
    parser.add_argument("--shares", nargs="*", type=float, default=list(SHARES), help="of the peak [0.3 0.6 0.85]")
    parser.add_argument("--rounds", dest="repeats", type=int, default=10, help="seeds at each load [10]")
    parser.add_argument("--seconds", type=float, default=2.5, help="length of a run [2.5]")
    parser.add_argument("--idle", type=float, default=9.0, help="seconds that a server is left alone at first [9]")
    parser.add_argument("--peaks", nargs="*", type=float, default=[], help="requests/s of each model [searched for]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--max-lag-ms", type=float, default=5.0, help="of the load generator, at the peak [5]")


def verdict(cell: Data) -> str:
    low, ratio, _ = cell["ratio"]
    return "met" if ratio <= TARGET else "undecided" if low <= TARGET else "**missed**"


def line(cell: Data) -> str:
    """One cell for the terminal."""
    low, ratio, high = cell["ratio"]
    where = "{model}, {start}, {share:.0%}".format(**cell)
    return f"{where}: {ratio:.3f} x ({low:.3f} to {high:.3f}), {verdict(cell)}"


def missed(data: Data) -> list[str]:
    return [line(cell) for cell in data["cells"] if cell["ratio"][0] > TARGET]


PAGE = Page("policies-start", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.policies.start", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
