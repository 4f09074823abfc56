"""Measures the simulator: speed, sizing, policies against load, the optimum, replicas behind routers.

Each section is a function that returns its figures as JSON values; page.py makes text, tables and plots of them.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from app.scheduler.estimates.profile import ModelProfile, linear, parse
from app.scheduler.optimal import solver as optimal
from app.scheduler.policies import POLICIES
from app.sim import options
from app.sim.fleet import Setup, run
from app.sim.routers import ROUTERS
from loadtest.common.command import Ran, starling, transcript
from loadtest.common.experiment import Say
from loadtest.common.paths import DOCS, ROOT

Figures = dict[str, Any]

MODEL = "linear:7+0.6b"  # the device of most figures: 7 ms and 0.6 ms a row
LOADS = tuple(round(0.1 * tenth, 1) for tenth in range(1, 10))

MLP = "an MLP on one CPU thread"
#: The example of docs/simulation.md: batch times as once measured of `mlp` on one CPU thread, and the rest made up.
PROFILE = "simulation-profile.json"

#: Batch times in ms, the curves whose optimum docs/simulation.md compares.
CURVES: dict[str, ModelProfile] = {
    "7 + 0.6 b": linear(7, 0.6, 32),
    "0.2 + 3 b": linear(0.2, 3, 32),
    "4 up to 8 rows, then 0.4 more a row": parse({"batch_ms": {"1": 4, "8": 4, "32": 4 + 24 * 0.4}}),
    MLP: options.profile(str(DOCS / PROFILE)),
}

ROUNDS = 3
MILLION = 1_000_000
REPLICAS = (1, 10, 100, 1000, 10_000)
POLICY_REQUESTS = 200_000


def speed(say: Say) -> Figures:
    """How long a million requests take on one core."""
    found: Figures = {}
    for policy in ("no_wait", "window", "adaptive"):
        arguments = (
            "simulate", "--profile", MODEL, "--policy", policy, "--load", "0.6", "--requests", str(MILLION), "--json",
        )  # fmt: skip
        rounds = []
        for _ in range(ROUNDS):
            say(f"speed: {policy}")
            rounds.append(starling(*arguments))
        found[policy] = {
            "wall_s": [ran.wall_s for ran in rounds], "cpu_s": median(ran.cpu_s for ran in rounds),
            "peak_mib": max(ran.peak_mib for ran in rounds), "cell": rounds[0].cell,
        }  # fmt: skip
    return {"model": MODEL, "requests": MILLION, "policies": found}


def sizing(say: Say) -> Figures:
    """What the commands of docs/simulation.md print."""
    profile = ("--profile", str((DOCS / PROFILE).relative_to(ROOT)))
    needed = ("--rate", "5000", "--deadline-ms", "60")
    commands = (
        ("simulate", *profile, "--load", "0.3,0.6,0.9"),
        ("simulate", *profile, *needed, "--replicas", "4,5,6", "--router", "round_robin,least_waiting"),
        ("optimum", *profile, "--rate", "1000"),
        ("simulate", *profile, *needed, "--replicas", "5,10", "--router", "round_robin", "--arrivals", "bursty:1:1"),
    )
    shell: list[str] = []
    for command in commands:
        say(f"sizing: {' '.join(command)}")
        shell += [*([""] if shell else []), *transcript(*command)]
    return {"profile": PROFILE, "shell": shell}


def policies(say: Say) -> Figures:
    """Every policy against load, with the least mean latency that any could reach."""
    profile = CURVES[MLP]
    cells: list[Figures] = []
    for policy in POLICIES:
        say(f"policies: {policy}")
        setups = [Setup(profile, load * profile.peak, policy, POLICY_REQUESTS, seed=1) for load in LOADS]
        cells += [run(setup) | {"load": load} for setup, load in zip(setups, LOADS, strict=True)]
    for load in LOADS:
        best = optimal.solve(profile.occupied_ns, load * profile.peak)
        cells.append({"policy": "optimum", "load": load, "mean_ms": best.mean_ns / 1e6, "p99_ms": None})
    sizes = [size for size in (1, 2, 3, 4, 8, 16, 32) if size <= profile.max_batch]
    times = ", ".join(f"{size}: {profile.batch_ns[size - 1] / 1e6:g}" for size in sizes)
    return {"device": MLP, "times": times, "requests": POLICY_REQUESTS, "loads": list(LOADS), "cells": cells}


def optimum(say: Say) -> Figures:
    """The exact distance of serving everything that waits from the optimum."""
    found: Figures = {}
    for name, profile in CURVES.items():
        say(f"optimum: {name}")
        above = {}
        for load in LOADS:
            rate = load * profile.peak
            best = optimal.solve(profile.occupied_ns, rate)
            every = [min(waiting, profile.max_batch) for waiting in range(512)]
            all_ns = optimal.evaluate(profile.occupied_ns, rate, every, pad=False).mean_ns
            above[str(load)] = all_ns / best.mean_ns - 1
        found[name] = above
    return {"above": found}


def fleet(say: Say) -> Figures:
    """Replicas behind each router, up to 10,000 replicas with ten million requests."""
    cells: list[Figures] = []
    runs: Figures = {}
    for router in ROUTERS:
        for replicas in REPLICAS:
            if replicas == 1 and router != ROUTERS[0]:
                continue
            ran = _fleet(router, replicas, say)
            cells.append({"router": router, "replicas": 1, **ran.cell})
            if replicas == max(REPLICAS):
                runs[router] = {"wall_s": ran.wall_s, "cpu_s": ran.cpu_s, "samples": ran.samples}
    return {"model": MODEL, "cells": cells, "runs": runs}


def _fleet(router: str, replicas: int, say: Say) -> Ran:
    requests = 10 * MILLION if replicas == max(REPLICAS) else MILLION
    say(f"fleet: {router}, {replicas:,} replicas, {requests:,} requests")
    return starling(
        "simulate", "--profile", MODEL, "--policy", "no_wait", "--load", "0.6", "--requests", str(requests),
        "--replicas", str(replicas), *(("--router", router) if replicas > 1 else ()), "--json",
    )  # fmt: skip


SECTIONS: dict[str, Callable[[Say], Figures]] = {
    "speed": speed,
    "sizing": sizing,
    "policies": policies,
    "optimum": optimum,
    "fleet": fleet,
}
