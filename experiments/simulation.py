"""The simulator's speed and its many replicas: `python -m experiments.simulation [SECTION ...]`.

Writes docs/bench/simulation.md, its figures and its plot. About 15 minutes in full, most of it for `fleet`. A section
that is made again replaces the earlier one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

from loadtest.common.command import Ran, starling
from loadtest.common.experiment import Data, Say, in_sections
from loadtest.common.page import Page, grouped
from planner.routers import ROUTERS

MODEL = "linear:7+0.6b"  # the device of all figures: 7 ms and 0.6 ms a row
ROUNDS = 3
MILLION = 1_000_000
REPLICAS = (1, 10, 100, 1000, 10_000)


def simulated(policy: str, requests: int, *more: str) -> Ran:
    """The command, at 0.6 of what the device serves at best."""
    return starling(
        "simulate", "--profile", MODEL, "--policy", policy, "--load", "0.6", "--requests", str(requests), "--json",
        *more,
    )  # fmt: skip


def speed(say: Say) -> Data:
    """How long a million requests take on one core."""
    found: Data = {}
    for policy in ("no_wait", "window", "adaptive"):
        rounds = []
        for _ in range(ROUNDS):
            say(f"speed: {policy}")
            rounds.append(simulated(policy, MILLION))
        found[policy] = {
            "wall_s": [ran.wall_s for ran in rounds], "cpu_s": median(ran.cpu_s for ran in rounds),
            "peak_mib": max(ran.peak_mib for ran in rounds), "cell": rounds[0].cell,
        }  # fmt: skip
    return {"model": MODEL, "requests": MILLION, "policies": found}


def fleet(say: Say) -> Data:
    """Replicas behind each router, up to 10,000 replicas with ten million requests."""
    cells, runs = [], {}
    for router in ROUTERS:
        for replicas in REPLICAS if router == ROUTERS[0] else REPLICAS[1:]:
            requests = 10 * MILLION if replicas == max(REPLICAS) else MILLION
            say(f"fleet: {router}, {replicas:,} replicas, {requests:,} requests")
            behind = ("--router", router) if replicas > 1 else ()
            ran = simulated("no_wait", requests, "--replicas", str(replicas), *behind)
            cells.append({"router": router, "replicas": 1, **ran.cell})
            if replicas == max(REPLICAS):
                runs[router] = {"wall_s": ran.wall_s, "cpu_s": ran.cpu_s, "samples": ran.samples}
    return {"model": MODEL, "cells": cells, "runs": runs}


def memory_mib(run: Data, begin: float, end: float) -> float:
    """The most memory between two shares of a run; 0 if it was too short for a sample."""
    inside = [mib for at, mib in run["samples"] if begin * run["wall_s"] <= at <= end * run["wall_s"]]
    return max(inside, default=0.0)


def draw(data: Data, folder: Path) -> None:
    """The 99th percentile against replicas, a line per router; all begin with the same run of one replica."""
    from loadtest.common.plots import saved

    cells = data["fleet"]["cells"]
    alone = [cell for cell in cells if cell["replicas"] == 1]
    with saved(folder / "simulation-routers.png") as axes:
        for router, of_router in grouped(cells, "router").items():
            line = [*alone, *(cell for cell in of_router if cell["replicas"] > 1)]
            axes.plot([cell["replicas"] for cell in line], [cell["p99_ms"] for cell in line], "o-", label=router)
        counts = sorted({cell["replicas"] for cell in cells})
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set_xlabel("replicas")
        axes.set_ylabel("latency, 99th percentile, ms")
        axes.set_ylim(0, 1.05 * max(cell["p99_ms"] for cell in cells))
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=9)


PAGE = Page("simulation", __name__, draw=draw)
EXPERIMENT = in_sections(PAGE, "experiments.simulation", __doc__, {"speed": speed, "fleet": fleet})

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
