"""Bulk work beside interactive requests: `python -m experiments.classes.bulk`. Writes docs/bench/bulk.md and .json.

`mlp` over HTTP, on one worker of one thread. Real-time requests come at random at a share of what the server answers at
best; 64 best-effort connections send their next request when the last one is answered. Servers take turns: the default,
whole and in stages, with the default budget and a larger one; and one without classes, whose real-time requests have
priority 1 and best-effort ones 2.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.common.baselines import command_of
from experiments.common.live import right, rows_a_batch, serving
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import ZOO
from loadtest.common.servers import Server
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session, in_loop
from loadtest.generator.stats import Repeat, percentile

MODEL = "mlp"
CONNECTIONS = 64  # of best effort
MARGIN_S = 0.25  # for which best effort runs before and after real time
WHOLE, SLICED = "whole", "sliced"
CUTS = ["1", "3"]  # behind the first and the second dense layer
LARGE_MS = 30.0
Said = Callable[[str], None]


@dataclass(frozen=True)
class Way:
    """One way to serve. `source`: the model whole or in stages; `priorities`: in place of classes."""

    title: str
    source: str
    flags: tuple[str, ...] = ()
    priorities: bool = False


WAYS = {
    "reef": Way("the default", WHOLE),
    "reef_30": Way(f"a budget of {LARGE_MS:g} ms", WHOLE, ("--preempt-budget-ms", f"{LARGE_MS:g}")),
    "sliced": Way("the default, the model in three stages", SLICED),
    "before": Way("no classes; priority 1 and 2", WHOLE, priorities=True),
}


class Scene:
    """The model's folders, its measured batch times, and a server for each way."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        self.folder = folder
        self.servers: dict[str, Server] = {}
        for source in (WHOLE, SLICED):
            copy = self.source(source)
            shutil.copytree(ZOO / MODEL, copy)
            toml = copy / "model.toml"
            text = toml.read_text(encoding="utf-8")
            more = f"cuts = {CUTS}\n" if source == SLICED else ""
            hidden = "kwargs = { hidden = 64 }\n" if chosen.quick else ""
            toml.write_text(hidden + more + text, encoding="utf-8")

    def source(self, name: str) -> Path:
        return self.folder / name / MODEL

    def profile(self) -> None:
        """Measure the batch times of both, where the servers look for them."""
        for source in (WHOLE, SLICED):
            command.profile(MODEL, self.source(source), self.folder / "profiles", self.chosen.budget)

    def flags(self, way: Way) -> Sequence[str]:
        profiles = str(self.folder / "profiles")
        shared = ("--threads", "1", "--workers", "32", "--profile-dir", profiles, "--profile-budget-s", "0")
        return ("--model", f"{MODEL}={self.source(way.source)}", *shared, *way.flags)

    def plans(self, name: str, rate: float | None) -> tuple[BenchPlan, BenchPlan]:
        """Of real time and of best effort."""
        plan = BenchPlan(
            url=self.servers[name].url, model=MODEL, payload="binary", connections=256,
            rate=rate or 1.0, timeout_s=60.0, seed=self.chosen.seed,
        )  # fmt: skip
        if WAYS[name].priorities:
            return replace(plan, priority=1), replace(plan, rate=None, concurrency=CONNECTIONS, priority=2)
        best_effort = replace(plan, rate=None, concurrency=CONNECTIONS, headers=("X-Class: best_effort",))
        return replace(plan, headers=("X-Class: realtime",)), best_effort

    async def bulk(self, name: str, seconds: float) -> dict[str, float]:
        """Best effort alone."""
        _, plan = self.plans(name, None)
        async with Session(plan) as session:
            return best_effort_of(right(name, await session.once(plan, plan.seed, seconds)))

    async def interactive(self, name: str, rate: float, seed: int, *, bulk: bool) -> dict[str, Any]:
        """Real time at this rate, alone or with best effort beside it."""
        realtime, best_effort = self.plans(name, rate)
        seconds = self.chosen.seconds
        async with AsyncExitStack() as stack:
            session = await stack.enter_async_context(Session(realtime))
            beside = None
            if bulk:
                other = await stack.enter_async_context(Session(best_effort))
                beside = asyncio.create_task(other.once(best_effort, seed, seconds + 2 * MARGIN_S))
                await asyncio.sleep(MARGIN_S)
            found: dict[str, Any] = realtime_of(right(name, await session.once(realtime, seed, seconds)))
            if beside is not None:
                found["best_effort"] = best_effort_of(right(name, await beside))
        return found


def realtime_of(repeat: Repeat) -> dict[str, Any]:
    """Latencies at the client and in the server in ms; `busy`: the share of the time that its batches computed."""
    done = repeat.completed
    return {
        "requests": len(done),
        "mean_ms": float(done.mean()) / 1e6,
        "p99_ms": percentile(done, 0.99),
        "server_p99_ms": percentile(repeat.server_ns[repeat.server_ns >= 0], 0.99),
        "lag_p99_ms": percentile(repeat.lag_ns, 0.99),
        "busy": busy(repeat),
        "batch": rows_a_batch([repeat]),
    }


def best_effort_of(repeat: Repeat) -> dict[str, float]:
    """Answers a second until the end of the load, and the rows of a batch."""
    ended = repeat.intended_ns + repeat.latency_ns
    until = int(((repeat.latency_ns >= 0) & (ended <= repeat.duration_s * 1e9)).sum())
    return {"per_s": until / repeat.duration_s, "batch": rows_a_batch([repeat])}


def busy(repeat: Repeat) -> float:
    """Share of the time in which batches of these requests computed: each row of a batch of b reports all of it."""
    known = (repeat.batch > 0) & (repeat.compute_ns >= 0)
    return float((repeat.compute_ns[known] / repeat.batch[known]).sum()) / 1e9 / repeat.elapsed_s


async def rounds(scene: Scene, say: Said) -> dict[str, Any]:
    chosen = scene.chosen
    peaks: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for number in range(chosen.repeats + 1):
        for name in WAYS:
            found = await scene.bulk(name, chosen.seconds / 2 if number else min(1.0, chosen.seconds))
            if number:  # the first warms up
                peaks[name].append(found)
    peak = float(np.median([found["per_s"] for found in peaks["before"]]))
    rate = chosen.share * peak
    say(f"at best {peak:.0f}/s; real time {rate:.1f}/s")
    runs: dict[str, dict[str, list[dict[str, Any]]]] = {name: {"alone": [], "beside": []} for name in WAYS}
    for number in range(chosen.repeats):
        for name, kept in runs.items():
            for which in ("alone", "beside"):
                seed = chosen.seed + number
                kept[which].append(await scene.interactive(name, rate, seed, bulk=which == "beside"))
        say(f"round {number + 1} of {chosen.repeats}")
    return {"peak": peak, "peaks": peaks, "rate": rate, "runs": runs}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a run [4]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each [3]")
    parser.add_argument("--share", type=float, default=0.3, help="of the best rate that is real time [0.3]")
    parser.add_argument("--budget", type=float, default=12.0, help="seconds to measure batch times [12]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--quick", action="store_true", help="a small model, one short run of each: to try it")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    if chosen.quick:
        vars(chosen).update({"seconds": 0.5, "repeats": 1, "budget": 2.0, "share": 0.02})
    if chosen.seconds <= 0 or chosen.repeats < 1 or not 0 < chosen.share < 1:
        parser.error("seconds, repeats, share: expected numbers above 0, the share below 1")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name:
        scene = Scene(chosen, Path(name))
        scene.profile()
        run.say("batch times are measured")
        commands = {"before": command_of("streams")}
        with serving({name: scene.flags(way) for name, way in WAYS.items()}, commands) as scene.servers:
            run.say("servers are ready")
            found: Mapping[str, Any] = in_loop(rounds(scene, run.say))
    settings = {
        "seconds": chosen.seconds, "repeats": chosen.repeats, "share": chosen.share, "connections": CONNECTIONS,
    }  # fmt: skip
    return {"settings": settings, "ways": {name: way.title for name, way in WAYS.items()}, **found}


REALTIME, BEST_EFFORT = 1.3, 0.85  # of p99 alone, at most; of the capacity left, at least


def slower(way: Data) -> list[float]:
    """The 99th percentile beside best effort over alone, by round."""
    pairs = zip(way["beside"], way["alone"], strict=True)
    return [beside["p99_ms"] / alone["p99_ms"] for beside, alone in pairs]


def left(data: Data, name: str) -> float:
    """Requests a second that the device has time for beside real time alone."""
    return float(data["peak"]) * max(0.0, 1 - median(run["busy"] for run in data["runs"][name]["alone"]))


def served(data: Data, name: str) -> list[float]:
    """Best-effort answers over the capacity left, by round."""
    capacity = left(data, name)
    return [run["best_effort"]["per_s"] / capacity if capacity else 0.0 for run in data["runs"][name]["beside"]]


def missed(data: Data) -> list[str]:
    """The targets that the default misses, whole or in stages."""
    lines = []
    for name in ("reef", "sliced"):
        ratio, part = median(slower(data["runs"][name])), median(served(data, name))
        if ratio > REALTIME:
            lines.append(f"{name}: real-time p99 {ratio:.2f} x alone, not {REALTIME:g}")
        if part < BEST_EFFORT:
            lines.append(f"{name}: best effort {part:.2f} of the capacity left, not {BEST_EFFORT:g}")
    return lines


PAGE = Page("bulk", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.classes.bulk", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
