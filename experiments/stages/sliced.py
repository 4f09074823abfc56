"""Simulates `adaptive` on models in stages against itself on the whole model: `python -m experiments.stages.sliced`.

The measured profiles (docs/bench/profiles/), cut into 2 and 4 stages of equal time and as
`starling profile --stages` would measure them, and the networks of DVABatch's experiments as they are cut there. The
same arrivals for both; the rate is a share of what the whole model serves at best. Writes docs/bench/sliced.md and
.json.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from experiments.common.networks import FAST
from experiments.common.processes import spread
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, standard_error
from loadtest.common.paths import DOCS
from planner import option_values
from planner.fleet import Setup, run

MEASURED = ("mlp", "encoder", "resnet18")
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
CUTS = (2, 4)
NOISE = 0.05  # of a stage's time, by size: the spread from size to size of stages that were measured


def equal(profile: ModelProfile, count: int) -> ModelProfile:
    """Stages that each take the same share of every batch."""
    stage = ModelProfile(tuple(max(1, time // count) for time in profile.batch_ns))
    return replace(profile, stages=(stage,) * count, handover_ns=None)


def measured(profile: ModelProfile, count: int, seed: int) -> ModelProfile:
    """Stages as a measurement finds them: shares that differ, by size too, and errors; the whole is their sum."""
    random = np.random.default_rng([seed, count])
    whole = np.array(profile.batch_ns, dtype=float)
    first, last = random.dirichlet([20.0] * count, 2)  # shares of single rows, and of the largest batch
    path = np.linspace(0, 1, len(whole))[:, None]
    shares = ((1 - path) * first + path * last) * random.normal(1, NOISE, (len(whole), count))
    tables = np.maximum(1, np.rint(whole[:, None] * shares)).astype(np.int64)
    stages = tuple(ModelProfile(tuple(column)) for column in tables.T.tolist())
    return replace(profile, batch_ns=tuple(tables.sum(axis=1).tolist()), stages=stages, handover_ns=None)


def cases() -> dict[str, ModelProfile]:
    """By name; the times of each whole are the sums of its stages."""
    found = {}
    for name in MEASURED:
        profile = replace(option_values.profile(str(DOCS / "profiles" / f"{name}.json")), concurrency_ns={})
        for count in CUTS:
            found[f"{name}, {count} of equal time"] = equal(profile, count)
            found[f"{name}, {count} as measured"] = measured(profile, count, 1)
    for network in FAST:
        profile = network.profile()
        alike = tuple(replace(stage, by_length=(), concurrency_ns={}) for stage in profile.stages)
        found[f"{network.name}, {len(alike)} of DVABatch's shape"] = replace(profile, by_length=(), stages=alike)
    return found


def tables(setup: Setup) -> ControlTables:
    """For the loads that are run, of which `adaptive` takes the nearest to the rate that it counts."""
    profile = setup.profile
    stages = tuple(stage.stage() for stage in profile.stages)
    return control.solve(profile.stage(), loads=LOADS, values=bool(stages), stages=stages)


def compare(given: tuple[str, ModelProfile, int, int]) -> list[dict[str, Any]]:
    """Mean latencies of one model at every load: in stages and whole, and their ratio less 1."""
    name, profile, requests, seeds = given
    whole, sliced = Setup(replace(profile, stages=()), 1.0), Setup(profile, 1.0)
    whole, sliced = (replace(one, max_queue=1 << 30, requests=requests, tables=tables(one)) for one in (whole, sliced))
    found = []
    for load in LOADS:
        pairs = []
        for seed in range(seeds):
            rate = load * profile.peak
            one, other = (run(replace(setup, rate=rate, seed=seed))["mean_ms"] for setup in (whole, sliced))
            pairs.append((one, other))
        ratios = [other / one - 1 for one, other in pairs]
        found.append(
            {
                "case": name, "load": load, "whole_ms": float(np.mean([one for one, _ in pairs])),
                "sliced_ms": float(np.mean([other for _, other in pairs])), "above": float(np.mean(ratios)),
                "above_error": standard_error(ratios),
            }
        )  # fmt: skip
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=10_000, help="requests of each run [10000]")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each cell [2]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    given = [(name, profile, chosen.requests, chosen.seeds) for name, profile in cases().items()]
    cells = [one for found in spread(compare, given, run.say) for one in found]
    return {"requests": chosen.requests, "seeds": chosen.seeds, "loads": list(LOADS), "cells": cells}


BOUND = 0.01  # of the whole model's mean latency


def percent(cell: Data) -> str:
    return f"{100 * cell['above']:+.2f} ± {100 * cell['above_error']:.2f} %"


def named(cell: Data) -> str:
    return f"{percent(cell)} ({cell['case']}, load {cell['load']:g})"


def missed(data: Data) -> list[str]:
    return [
        f"{cell['case']}, load {cell['load']:g}: {percent(cell)}" for cell in data["cells"] if cell["above"] > BOUND
    ]


PAGE = Page("sliced", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.stages.sliced", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
