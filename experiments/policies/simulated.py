"""Simulates every policy and compares it with the optimum: `python -m experiments.policies.simulated`.

Six devices, three of them measured (docs/bench/profiles/, by `starling profile` with one thread) and three made up, at
six loads each, with Poisson arrivals and one batch at a time. The optimum is the exact least mean latency of any
policy (`app.scheduler.optimal.solver`).

Two things reduce the noise. All policies get the same arrivals. And the optimal policy, whose true mean is known, is
simulated on the same arrivals: the error of its run is subtracted from the others (a control variate). Standard errors
are over seeds. Writes docs/bench/policies.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import solver as optimal
from app.scheduler.optimal.tables import ControlTables
from experiments.common.processes import spread
from experiments.common.simulated import FOREVER_MS, Instants, Policy, Server, steady, stepped
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, ms, standard_error
from loadtest.common.paths import DOCS
from planner import option_values
from planner.option_values import default_workers
from planner.profile_times import linear, occupied_ns
from planner.serve_all import bound_ns

PROFILES = DOCS / "profiles"
MEASURED = ("mlp", "encoder", "resnet18")
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9, 0.95)
DELAYS = (1, 2, 5, 10, 20)  # ms, of window, static and preferred
_LEAST_S = 20  # length of a run
_SHOWN = (1, 2, 3, 4, 8, 16, 32)  # batch sizes, on the page
#: If the last quarter's latency over the first's and the mean over the optimum are larger, the queue grows forever.
_GROWS = 3.0


@dataclass(frozen=True)
class Scale:
    """Seeds and requests of each; `more` times as many at loads from 0.9 on, where queues change slowly."""

    seeds: int = 4
    requests: int = 10_000
    more: int = 3


@dataclass(frozen=True)
class Contender:
    """A line of the table. Of several delays the one with the least mean latency on the first seed is used."""

    name: str
    policy: str
    delays_ms: tuple[float, ...] = (5,)


CONTENDERS = (
    Contender("adaptive", "adaptive"),
    Contender("no_wait", "no_wait"),
    Contender("window", "window", delays_ms=DELAYS),
    Contender("static", "static", delays_ms=DELAYS),
    Contender("preferred", "preferred", delays_ms=DELAYS),
    Contender("preferred, literal", "preferred", delays_ms=(FOREVER_MS,)),
    Contender("ebird", "ebird"),
)


def devices(folder: Path) -> dict[str, Profile]:
    """The measured profiles of a folder and three made-up ones. Raises OSError and ValueError for a bad file."""
    flat = tuple(round((4 + max(0.0, 0.4 * (rows - 8))) * 1e6) for rows in range(1, 33))
    return {
        **{name: option_values.profile(str(folder / f"{name}.json")) for name in MEASURED},
        "7 + 0.6 b": linear(7, 0.6, 32), "0.2 + 3 b": linear(0.2, 3, 32),
        "4 to 8 rows, then + 0.4": Profile(flat, model="made up"),
    }  # fmt: skip


def best_tables(profile: Profile, rate: float) -> tuple[optimal.Optimum, ControlTables]:
    """The optimum, and control tables by which it is followed at every measured rate."""
    best = optimal.solve(occupied_ns(profile), rate)
    return best, ControlTables((0.0,), (best.table,), best.tail, best.sizes, profile.peak, mean_ns=(best.mean_ns,))


def simulate(server: Server, instants: Instants) -> dict[str, float]:
    """Latencies in ms, and rows a batch. Requests that are never answered are left out."""
    served = steady(server, instants)
    latency, tally = served.latency_ms[served.latency_ms < FOREVER_MS / 2], served.tally
    return {
        "mean_ms": float(latency.mean()), "p99_ms": float(np.quantile(latency, 0.99)),
        "batch": tally.rows / tally.units,
        "late": float(latency[-len(latency) // 4 :].mean() / latency[: len(latency) // 4].mean()),
    }  # fmt: skip


def cell(given: tuple[str, Profile, float, Scale]) -> list[dict[str, Any]]:
    """All policies on one device at one load."""
    device, profile, load, scale = given
    requests = max(scale.requests * (scale.more if load >= 0.9 else 1), round(_LEAST_S * load * profile.peak))
    arrivals = [stepped([(requests, load * profile.peak)], seed) for seed in range(scale.seeds)]
    best, tables = best_tables(profile, load * profile.peak)
    optimum = best.mean_ns / 1e6
    server = Server(Policy("adaptive"), profile, (profile.max_batch,), tables=tables)
    simulated = [simulate(server, instants)["mean_ms"] / optimum for instants in arrivals]
    return [
        {"device": device, "load": load, "name": contender.name, "optimum_ms": optimum}
        | against(contender, profile, arrivals, simulated, optimum)
        for contender in CONTENDERS
    ]


def against(
    contender: Contender, profile: Profile, arrivals: Sequence[Instants], simulated: Sequence[float],
    optimum: float,
) -> dict[str, Any]:  # fmt: skip
    """One policy's figures. `simulated`: the mean of the optimal policy on the same arrivals, over `optimum` in ms."""
    workers = default_workers(contender.policy, profile.max_batch)

    def runs_with(delay_ms: float, some: Sequence[Instants]) -> list[dict[str, float]]:
        server = Server(Policy(contender.policy, delay_ms), profile, workers)
        return [simulate(server, instants) for instants in some]

    first = {delay: runs_with(delay, arrivals[:1])[0] for delay in contender.delays_ms}
    delay = min(first, key=lambda one: first[one]["mean_ms"])
    runs = [first[delay], *runs_with(delay, arrivals[1:])]
    above = [one["mean_ms"] / optimum - same for one, same in zip(runs, simulated, strict=True)]
    mean = {key: float(np.mean([one[key] for one in runs])) for key in runs[0]}
    return {
        **{key: mean[key] for key in ("mean_ms", "p99_ms", "batch")},
        "delay_ms": delay if len(contender.delays_ms) > 1 else None,
        "overloaded": mean["late"] > _GROWS and mean["mean_ms"] > _GROWS * optimum,
        "optimum_off": float(np.mean(simulated)) - 1, "above": float(np.mean(above)),
        "above_error": standard_error(above),
    }  # fmt: skip


def described(profile: Profile) -> Data:
    """A device as the page describes it."""
    source = f"measured, {profile.device}, {profile.threads} thread" if profile.threads else "made up"
    sizes = [size for size in _SHOWN if size <= profile.max_batch]
    times = {str(size): profile.batch_ns[size - 1] / 1e6 for size in sizes}
    return {"source": source, "times_ms": times, "peak": profile.peak, "best": profile.best}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=Scale.seeds, help=f"runs of each cell [{Scale.seeds}]")
    parser.add_argument("--requests", type=int, default=Scale.requests, help=f"of a run [{Scale.requests}]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    scale = Scale(chosen.seeds, chosen.requests)
    profiles = devices(PROFILES)
    given = [(name, profile, load, scale) for name, profile in profiles.items() for load in LOADS]
    cells = [one for found in spread(cell, given, run.say) for one in found]
    shown = {name: described(profile) for name, profile in profiles.items()}
    return {"scale": asdict(scale), "devices": shown, "cells": cells}


TARGETS = {"adaptive": 0.02}


def distance(cell: Data) -> str:
    if cell["overloaded"]:
        return "grows"
    delay = "" if cell["delay_ms"] is None else f" ({cell['delay_ms']:g})"
    return f"{100 * cell['above']:+.1f} ± {100 * cell['above_error']:.1f} %{delay}"


def worst(cells: Sequence[Data], name: str) -> Data:
    return max((cell for cell in cells if cell["name"] == name), key=lambda cell: float(cell["above"]))


def missed(data: Data) -> list[str]:
    cells = [worst(data["cells"], name) for name in TARGETS]
    return [
        f"{cell['name']}: {distance(cell)} on {cell['device']} at load {cell['load']:g}"
        for cell in cells
        if cell["above"] > TARGETS[cell["name"]]
    ]


def bound(device: Data, load: float) -> str:
    """Of running all that waits in batches of any size, with times between those shown on straight lines."""
    shown = {int(size): time for size, time in device["times_ms"].items()}
    times = np.interp(range(1, max(shown) + 1), list(shown), list(shown.values()))
    found = bound_ns([round(time * 1e6) for time in times], load * device["peak"])
    return "-" if found is None else ms(found / 1e6)


PAGE = Page("policies", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.policies.simulated", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
