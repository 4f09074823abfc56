"""What `starling size` predicts against what a server does: `python -m loadtest.sized`. Writes docs/bench/sized.json.

Of each model: `size --measure` on this machine, then Poisson arrivals at shares of what a closed loop reaches, in
rounds, each on a server that was just started with the measured profile.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from statistics import median
from typing import Any

import numpy as np

from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.servers import MeasurementError, clean_environment, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session, in_loop
from loadtest.generator.stats import Repeat

LOADS = (0.4, 0.8)
MODELS = {"mlp": "16", "encoder": "uniform:8:64", "resnet18": "16", "lstm": "uniform:8:64"}  # the lengths of their rows
IN_FLIGHT, PEAK_S, WARM_UP_S = 64, 5.0, 3.0
QUANTILES = {"p50": "p50_ms", "p99": "p99_median_ms"}  # by the names that size prints: of its runs the median
WITHIN, WANTED = 0.25, 15  # of 16 figures


def size(model: str, profiles: str, rate: float, *measured: str) -> Data:
    """What one replica does at this rate, as `starling size` prints it."""
    command = [
        sys.executable, "-m", "app", "size", "--models", "loadtest/models", "--model", model, "--json",
        "--rate", str(rate), "--p99-ms", "100000", "--headroom", "0", "--max-replicas", "1", "--format", "binary",
        "--requests", "2000", "--profile-dir", profiles, *lengths(model), *measured,
    ]  # fmt: skip
    ended = subprocess.run(command, capture_output=True, text=True, env=clean_environment(), check=False)
    if not ended.stdout:
        raise MeasurementError(f"size of {model}: status {ended.returncode}, {ended.stderr.strip()[-400:]}")
    told: Data = json.loads(ended.stdout)
    return told


def lengths(model: str) -> tuple[str, ...]:
    return ("--lengths", MODELS[model]) if ":" in MODELS[model] else ()


def served(model: str, profiles: str, seconds: float, seed: int, rate: float | None = None) -> Repeat:
    """A new server under this load, without a rate the closed loop, after a warm-up of the same load."""
    with starling((f"loadtest/models/{model}", "--threads", "1", "--profile-dir", profiles)) as server:
        plan = BenchPlan(
            url=server.url, model=model, payload="binary", lengths=MODELS[model], seed=seed, rate=rate,
            concurrency=None if rate else IN_FLIGHT, duration_s=seconds, repeats=1,
        )  # fmt: skip
        server.wait_ready()
        repeat = in_loop(warmed(plan))
    for example in repeat.examples.values():
        raise MeasurementError(f"{model}: {example}")
    return repeat


async def warmed(plan: BenchPlan) -> Repeat:
    async with Session(plan) as session:
        await session.once(plan, plan.seed + 1000, WARM_UP_S)
        return await session.once(plan, plan.seed, plan.duration_s)


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    data: Data = {"rounds": chosen.rounds, "seconds": chosen.seconds, "models": {}}
    for model in chosen.models:
        with tempfile.TemporaryDirectory() as profiles:
            size(model, profiles, 1.0, "--measure", "--budget-s", str(chosen.budget_s))
            closed = served(model, profiles, PEAK_S, 0)
            peak = len(closed.completed) / closed.elapsed_s
            loads: Data = {}
            data["models"][model] = {"peak": peak, "loads": loads}
            for load in LOADS:
                told = size(model, profiles, load * peak)
                one = loads[f"{load:g}"] = {
                    "told": {name: told["predicted"][0][key] for name, key in QUANTILES.items()},
                    "http": told["http"],
                    "error": told["error"],
                    "live": {name: [] for name in QUANTILES},
                }
                for number in range(chosen.rounds):
                    repeat = served(model, profiles, chosen.seconds, number, load * peak)
                    for name in QUANTILES:
                        one["live"][name].append(float(np.percentile(repeat.completed, int(name[1:]))) / 1e6)
                run.say(f"{model}, {load:g} of {peak:.0f}/s: " + "; ".join(compared(one)))
    return data


def compared(one: Data) -> Iterator[str]:
    for name in QUANTILES:
        yield f"{name} {one['told'][name]:.2f} ms told, {median(one['live'][name]):.2f} live ({off(one, name):+.0%})"


def off(one: Data, name: str) -> float:
    """How far the prediction lies off the median of the live rounds, as a share of that."""
    return float(one["told"][name] / median(one["live"][name]) - 1)


def figures(models: Data) -> list[tuple[str, str, str, Any]]:
    return [
        (model, load, name, one)
        for model, its in models.items()
        for load, one in its["loads"].items()
        for name in QUANTILES
    ]


def within(models: Data) -> int:
    return sum(abs(off(one, name)) <= WITHIN for _, _, name, one in figures(models))


def missed(data: Data) -> list[str]:
    count, of = within(data["models"]), len(figures(data["models"]))
    return [] if count >= of * WANTED / 16 else [f"{count} of {of} figures within {WITHIN:.0%}; {WANTED} of 16 wanted"]


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="servers of each load and model [3]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of load on each of them [10]")
    parser.add_argument("--budget-s", type=float, default=10.0, help="of each profile [10]")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS], help="all of them unless named")


PAGE = Page("sized", __name__, missed)
EXPERIMENT = Experiment(PAGE, "loadtest.sized", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
