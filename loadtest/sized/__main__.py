"""What `starling size` predicts against what a server does: `python -m loadtest.sized`. Writes docs/bench/sized.json.

Of each model in rounds: `size --measure` on this machine, then Poisson arrivals at shares of what a closed loop
reaches, on servers that were just started with the measured profile. A round is compared with itself: machines drift.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from statistics import median

import numpy as np

from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.servers import MeasurementError, clean_environment
from loadtest.generator.new_server import on_new_server
from loadtest.generator.stats import Repeat

LOADS = (0.4, 0.8)
MODELS = {"mlp": "16", "encoder": "uniform:8:64", "resnet18": "16", "lstm": "uniform:8:64"}  # the lengths of their rows
IN_FLIGHT, PEAK_S, WARM_UP_S = 64, 5.0, 3.0
QUANTILES = {"p50": "p50_ms", "p99": "p99_median_ms"}  # by the names that size prints: of its runs the median
WITHIN, WANTED = 0.25, 15  # of 16 figures


def size(model: str, profiles: str, rate: float, *measured: str) -> Data:
    """What `starling size` prints for one replica at this rate."""
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
    return on_new_server(
        (f"loadtest/models/{model}", "--threads", "1", "--profile-dir", profiles), warm_up_s=WARM_UP_S,
        model=model, lengths=MODELS[model], seed=seed, rate=rate, concurrency=None if rate else IN_FLIGHT,
        duration_s=seconds,
    )  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    data: Data = {"rounds": chosen.rounds, "seconds": chosen.seconds, "models": {}}
    for model in chosen.models:
        loads: Data = {f"{load:g}": {name: {"told": [], "live": []} for name in QUANTILES} for load in LOADS}
        one: Data = {"loads": loads, "http": []}
        data["models"][model] = one
        for number in range(chosen.rounds):
            with tempfile.TemporaryDirectory() as profiles:
                one["http"].append(size(model, profiles, 1.0, "--measure", "--budget-s", str(chosen.budget_s))["http"])
                if not number:
                    closed = served(model, profiles, PEAK_S, 0)
                    one["peak"] = len(closed.completed) / closed.elapsed_s
                for load in LOADS:
                    told = size(model, profiles, load * one["peak"])["predicted"][0]
                    repeat = served(model, profiles, chosen.seconds, number, load * one["peak"])
                    for name, key in QUANTILES.items():
                        loads[f"{load:g}"][name]["told"].append(told[key])
                        live = float(np.percentile(repeat.completed, int(name[1:]))) / 1e6
                        loads[f"{load:g}"][name]["live"].append(live)
            run.say(f"{model}, round {number + 1}")
        for _, share, name, both in figures({model: one}):
            run.say(f"{model}, {share} of {one['peak']:.0f}/s: {name} {off(both):+.0%}")
    return data


def off(both: Data) -> float:
    """How far what was told lies off the live figure, as a share of that: the median of the rounds."""
    return median(told / live - 1 for told, live in zip(both["told"], both["live"], strict=True))


def figures(models: Data) -> list[tuple[str, str, str, Data]]:
    return [
        (model, load, name, both)
        for model, its in models.items()
        for load, one in its["loads"].items()
        for name, both in one.items()
    ]


def within(models: Data) -> int:
    return sum(abs(off(both)) <= WITHIN for *_, both in figures(models))


def missed(data: Data) -> list[str]:
    count, of = within(data["models"]), len(figures(data["models"]))
    return [] if count >= of * WANTED / 16 else [f"{count} of {of} figures within {WITHIN:.0%}; {WANTED} of 16 wanted"]


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="of each model [3]")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each load [10]")
    parser.add_argument("--budget-s", type=float, default=10.0, help="of each profile [10]")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS], help="all of them unless named")


PAGE = Page("sized", __name__, missed)
EXPERIMENT = Experiment(PAGE, "loadtest.sized", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
