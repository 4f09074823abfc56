"""Two workers right after an ordinary start, by policy: `python -m loadtest.starts`. Writes docs/bench/starts.json.

Each round starts a server of each policy, one after another and each time another one first, without stored profiles.
Poisson arrivals begin when it is ready: shares of what a closed loop reaches with `no_wait`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from statistics import median

from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.generator.new_server import on_new_server
from loadtest.generator.stats import Repeat

POLICIES = ("adaptive", "no_wait", "window")
LOADS = (0.6, 0.85)
MODELS = {"mlp": "16", "encoder": "uniform:8:64"}  # the lengths of their rows
LARGEST, IN_FLIGHT, PEAK_S = 32, 128, 5.0
TARGET = 1.03  # of the mean latency over that of the best other policy


def served(model: str, policy: str, seconds: float, seed: int, rate: float | None = None) -> Repeat:
    """A new server under this load, without a rate the closed loop."""
    with tempfile.TemporaryDirectory() as profiles:
        flags = ("--policy", policy, "--workers", f"{LARGEST},{LARGEST}", "--threads", "1", "--max-queue", "4096")
        return on_new_server(
            (f"loadtest/models/{model}", *flags, "--profile-dir", profiles),
            model=model, lengths=MODELS[model], seed=seed, rate=rate, concurrency=None if rate else IN_FLIGHT,
            duration_s=seconds,
        )  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    data: Data = {"rounds": chosen.rounds, "seconds": chosen.seconds, "models": {}}
    for model in chosen.models:
        closed = served(model, "no_wait", PEAK_S, 0)
        peak = len(closed.completed) / closed.elapsed_s
        loads: Data = {}
        data["models"][model] = {"peak": peak, "loads": loads}
        for load in LOADS:
            means: dict[str, list[float]] = {policy: [] for policy in POLICIES}
            loads[f"{load:g}"] = means
            for number in range(chosen.rounds):
                first = number % len(POLICIES)
                for policy in (*POLICIES[first:], *POLICIES[:first]):
                    repeat = served(model, policy, chosen.seconds, number, load * peak)
                    means[policy].append(float(repeat.completed.mean()) / 1e6)
                told = ", ".join(f"{policy} {means[policy][-1]:.2f}" for policy in POLICIES)
                run.say(f"{model}, {load:g} of {peak:.0f}/s: mean in ms {told}")
    return data


def ratios(means: dict[str, list[float]]) -> list[float]:
    """By round: the mean latency of `adaptive` over that of the other policy that is best by its median."""
    best = min(POLICIES[1:], key=lambda policy: median(means[policy]))
    return [own / other for own, other in zip(means[POLICIES[0]], means[best], strict=True)]


def missed(data: Data) -> list[str]:
    return [
        f"{model}, {load} of the peak: {median(ratios(means)):.2f} x the best other; at most {TARGET:g}"
        for model, one in data["models"].items()
        for load, means in one["loads"].items()
        if median(ratios(means)) > TARGET
    ]


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=10, help="servers of each policy, load and model [10]")
    parser.add_argument("--seconds", type=float, default=12.0, help="of load on each of them [12]")
    parser.add_argument("--models", nargs="*", choices=MODELS, default=[*MODELS], help="all of them unless named")


PAGE = Page("starts", __name__, missed)
EXPERIMENT = Experiment(PAGE, "loadtest.starts", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
