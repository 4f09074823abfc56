"""One replica under Ray Serve against the server alone: `python -m experiments.ray.ray_serve`. Writes ray-serve.md.

The same models over HTTP, one compute thread each: by `starling serve`, by a replica of `starling_app` behind Ray's
proxy, and by what Ray offers itself, `@serve.batch`, with its default wait and with none. Each is asked one request
after another, by 64 connections that always have one in flight, and at random at half of what the slowest answers; in
turns, so that the machine's moods fall on all.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from app.bench.plan import Plan
from app.bench.run import Session, in_loop
from app.bench.stats import Repeat, percentile
from app.models.repository import SETS
from experiments.common.local_ray import LocalRay
from experiments.ray import ray_serve_page
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.paths import LOOPBACK, ZOO
from loadtest.common.servers import MeasurementError, starling

MODELS = ("echo", "mlp")
CONNECTIONS = 64
MAX_BATCH = 32
WAIT_S = 0.01  # Ray's default of batch_wait_timeout_s
SHARE = 0.5  # of the smallest throughput, for the open loop
BATCH_APP = "experiments.ray.ray_batch_app:build"
WAYS = {
    "alone": "`starling serve`",
    "ray": "a replica of `starling_app`",
    "batch": f"`@serve.batch`, waits {WAIT_S * 1e3:g} ms",
    "batch_0": "`@serve.batch`, waits for nothing",
}
Say = Callable[[str], None]


def folders(into: Path, quick: bool) -> dict[str, Path]:
    """The models' folders by name; `quick` makes the network a small one."""
    found = {"echo": SETS["demo"]["echo"], "mlp": into / "mlp"}
    shutil.copytree(ZOO / "mlp", found["mlp"])
    if quick:
        toml = found["mlp"] / "model.toml"
        toml.write_text("kwargs = { hidden = 64 }\n" + toml.read_text(encoding="utf-8"), encoding="utf-8")
    return found


def start(
    folder: Path, models: dict[str, Path], stack: ExitStack, say: Say, *, optimized: bool
) -> dict[tuple[str, str], str]:
    """Start everything; the address of each way and model. All stay idle but the one that is measured."""
    named = [f"{name}={path}" for name, path in models.items()]
    flags = ("--threads", "1", "--profile-dir", str(folder / "profiles"))
    alone = stack.enter_context(starling([*flags, *(word for one in named for word in ("--model", one))]))
    # More than there are: each replica takes one of them, and all but one are idle.
    ray = stack.enter_context(LocalRay(8, {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"} if optimized else {}))
    ours = {"model": named, "threads": 1, "profile_dir": str(folder / "profiles")}
    ray.deploy("ray", ours, prefix="/ray")
    addresses = {}
    for model, path in models.items():
        for way, wait_s in (("batch", WAIT_S), ("batch_0", 0.0)):
            given = {"folder": str(path), "max_batch": MAX_BATCH, "wait_s": wait_s}
            ray.deploy(f"{way}-{model}", given, BATCH_APP, f"/{way}-{model}")
            addresses[way, model] = f"http://{LOOPBACK}:{ray.port}/{way}-{model}"
        addresses["ray", model] = f"http://{LOOPBACK}:{ray.port}/ray"
        addresses["alone", model] = f"http://{LOOPBACK}:{alone.port}"
    alone.wait_ready()
    say(f"{len(addresses)} are served")
    return addresses


def figures_of(repeat: Repeat) -> dict[str, float]:
    """Answers a second until the load's end, and latencies in ms. Raises MeasurementError if an answer is wrong."""
    for example in repeat.examples.values():
        raise MeasurementError(example)
    ended = repeat.intended_ns + repeat.latency_ns
    in_time = int((ended <= repeat.duration_s * 1e9).sum())
    return {
        "per_s": in_time / repeat.duration_s,
        "p50_ms": percentile(repeat.completed, 0.5) or 0.0,
        "p99_ms": percentile(repeat.completed, 0.99) or 0.0,
    }


async def once(plan: Plan, seconds: float, warm_s: float) -> dict[str, float]:
    async with Session(plan) as session:
        await session.once(plan, plan.seed, warm_s)
        return figures_of(await session.once(plan, plan.seed, seconds))


def plan_of(url: str, model: str, concurrency: int | None, rate: float | None = None) -> Plan:
    return Plan(
        url=url, model=model, concurrency=concurrency, rate=rate, connections=4 * CONNECTIONS, timeout_s=60.0
    )  # fmt: skip


def rounds(addresses: dict[tuple[str, str], str], chosen: argparse.Namespace, say: Say) -> dict[str, Any]:
    """By model, load and way, the figures of each round."""
    found: dict[str, Any] = {model: {"one": {}, "many": {}, "open": {}} for model in MODELS}
    rates: dict[str, float] = {}
    for load, concurrency in (("one", 1), ("many", CONNECTIONS), ("open", None)):
        for number in range(chosen.repeats):
            for model in MODELS:
                if load == "open":
                    many = found[model]["many"].values()
                    rates[model] = SHARE * min(median(run["per_s"] for run in runs) for runs in many)
                for way in WAYS:
                    plan = plan_of(addresses[way, model], model, concurrency, rates.get(model))
                    plan = replace(plan, seed=chosen.seed + number)
                    got = in_loop(once(plan, chosen.seconds, chosen.seconds / 4))
                    found[model][load].setdefault(way, []).append(got)
            say(f"{load}: round {number + 1} of {chosen.repeats}")
    return {"runs": found, "rates": rates}


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        addresses = start(folder, folders(folder, chosen.quick), stack, run.say, optimized=chosen.optimized)
        figures = rounds(addresses, chosen, run.say)
    settings = {"connections": CONNECTIONS, "max_batch": MAX_BATCH, "share": SHARE, "optimized": chosen.optimized}
    return {
        "settings": {**settings, "seconds": chosen.seconds, "repeats": chosen.repeats},
        "ways": WAYS, "ray": ray_version(), **figures,
    }  # fmt: skip


def ray_version() -> str:
    from importlib.metadata import version

    return version("ray")


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a run [6]")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each [5]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--optimized", action="store_true", help="with RAY_SERVE_THROUGHPUT_OPTIMIZED=1")
    parser.add_argument("--quick", action="store_true", help="a small network and one short run of each: to try it")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    if chosen.quick:
        chosen.seconds, chosen.repeats = 1.0, 1
    if chosen.seconds <= 0 or chosen.repeats < 1:
        parser.error("--seconds: expected more than 0; --repeats: at least 1")


EXPERIMENT = Experiment(ray_serve_page.PAGE, "experiments.ray.ray_serve", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
