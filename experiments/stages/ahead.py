"""Simulates how early a second unit should be handed to a busy worker: `python -m experiments.stages.ahead`.

One worker with a launch cost, three curves of batch times, three loads. Compares the mean latency of handing over a
unit after the one before it has ended, at once, and one launch time before the predicted end of the one before it.
Writes docs/bench/ahead.json.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from statistics import fmean

from app.scheduler.estimates.profile import ModelProfile, linear, parse
from app.scheduler.types import AT_ONCE
from experiments.common.processes import spread
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from planner.fleet import Setup
from planner.fleet import run as simulate

CURVES: dict[str, ModelProfile] = {
    "7 + 0.6 b": linear(7, 0.6, 32),
    "0.2 + 3 b": linear(0.2, 3, 32),
    "4 to 8 rows, then + 0.4": parse({"batch_ms": {"1": 4, "8": 4, "32": 4 + 24 * 0.4}}),
}
LOADS = (0.3, 0.6, 0.9)
LAUNCH_NS = AHEAD_NS = 300_000  # about what a launch and a turn of the event loop cost on a GPU


def cell(given: tuple[str, float, int, int]) -> Data:
    """Mean latencies for one curve at one load. All ways of handing units over get the same arrivals."""
    curve, load, seeds, requests = given
    profile = CURVES[curve]
    rate = load * profile.peak

    def means_ms(depth: int, ahead_ns: int) -> list[float]:
        setup = Setup(profile, rate, "adaptive", requests, push_depth=depth, push_ahead_ns=ahead_ns,
                      launch_ns=LAUNCH_NS, max_queue=1 << 30)  # fmt: skip
        return [simulate(replace(setup, seed=seed))["mean_ms"] for seed in range(seeds)]

    return {
        "curve": curve, "load": load, "rate": rate, "depth_1": means_ms(1, 0), "at_once": means_ms(2, AT_ONCE),
        "ahead": means_ms(2, AHEAD_NS),
    }  # fmt: skip


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=4, help="runs of each cell [4]")
    parser.add_argument("--requests", type=int, default=30_000, help="of a run [30000]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    given = [(curve, load, chosen.seeds, chosen.requests) for curve in CURVES for load in LOADS]
    settings = {
        "launch_ms": LAUNCH_NS / 1e6, "ahead_ms": AHEAD_NS / 1e6, "seeds": chosen.seeds, "requests": chosen.requests,
    }  # fmt: skip
    return {"settings": settings, "cells": spread(cell, given, run.say)}


WITHIN = 0.03  # of the better of depth 1 and depth 2 at once


def above(cell: Data) -> list[float]:
    """By seed: mean latency within the time over the better of the other two, less one."""
    better = min((cell["depth_1"], cell["at_once"]), key=fmean)
    return [ahead / other - 1 for ahead, other in zip(cell["ahead"], better, strict=True)]


def missed(data: Data) -> list[str]:
    """The cells in which handing over within the time is too far above the better of the other two."""
    return [
        f"{cell['curve']}, load {cell['load']:g}: {fmean(above(cell)):+.1%}"
        for cell in data["cells"]
        if fmean(above(cell)) > WITHIN
    ]


PAGE = Page("ahead", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.stages.ahead", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
