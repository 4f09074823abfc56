"""Simulates which of two models goes first: `python -m experiments.many models`.

One worker, two models of batches of up to 8 rows under `adaptive`, Poisson arrivals of each. Compared on the same
arrivals are the order of arrival, the scheduler's index, and the optimum over all orders and batch sizes: the solution
of the decision process (`experiments.many.two_models`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from itertools import product
from statistics import fmean

import numpy as np

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import tables
from experiments.common.processes import spread
from experiments.many import driver, two_models
from loadtest.common.experiment import Data, Say
from loadtest.common.paths import DOCS
from planner import option_values
from planner.profile_times import linear

LARGEST = 8  # rows: the decision process has as many actions for each model
LOADS = (0.3, 0.6, 0.85)
SHARES = (0.5, 0.8)  # of the load that is the fast model's
SEEDS, REQUESTS = 1, 20_000  # of each cell; requests of a run
WITHIN = 0.03  # of the optimum
RISE = 0.10  # of a model's p99 over that in order of arrival, at most
_WARM = 0.05  # of the requests of a run, left out
_solve = lru_cache(maxsize=16)(tables.solve)


def pairs() -> dict[str, tuple[Profile, Profile]]:
    """The fast model first."""
    mlp, encoder = (
        option_values.profile(str(DOCS / "profiles" / f"{name}.json"), LARGEST) for name in ("mlp", "encoder")
    )
    return {
        "1 + 0.05 b, 10 + 0.5 b": (linear(1, 0.05, LARGEST), linear(10, 0.5, LARGEST)),
        "1 + 0.05 b, 3 + 0.15 b": (linear(1, 0.05, LARGEST), linear(3, 0.15, LARGEST)),
        "0.2 + 1 b, 30 + 1 b": (linear(0.2, 1, LARGEST), linear(30, 1, LARGEST)),
        "0.1 + 1 b, 1 + 10 b": (linear(0.1, 1, LARGEST), linear(1, 10, LARGEST)),
        "1 + 0.05 b, 1 + 5 b": (linear(1, 0.05, LARGEST), linear(1, 5, LARGEST)),
        "mlp, encoder (measured)": (mlp, encoder),
    }


def figures(latencies: driver.Latencies) -> dict[str, object]:
    """The mean over all requests, and each model's mean and p99, in ms."""
    kept = [one[round(_WARM * len(one)) :] for one in latencies]
    return {
        "mean_ms": float(np.concatenate(kept).mean()),
        "means_ms": [float(one.mean()) for one in kept],
        "p99_ms": [float(np.quantile(one, 0.99)) for one in kept],
    }


def cell(given: tuple[str, float, float, int]) -> Data:
    """Two models at one load; `share` of it is the first one's."""
    name, load, share, requests = given
    profiles = pairs()[name]
    rates = [load * part * profile.peak for part, profile in zip((share, 1 - share), profiles, strict=True)]
    solved = [_solve(profile) for profile in profiles]
    best = two_models.solve([profile.batch_ns for profile in profiles], rates)
    instants = [driver.arrivals(rates, requests, seed) for seed in range(SEEDS)]
    return {
        "pair": name, "load": load, "share": share, "rates": rates, "solved_ms": best.mean_ns / 1e6,
        "arrival": [figures(driver.serve(profiles, solved, one, "streams")) for one in instants],
        "index": [figures(driver.serve(profiles, solved, one, "reef")) for one in instants],
        "optimum": [figures(driver.follow(profiles, one, best.choose)) for one in instants],
    }  # fmt: skip


def measure(say: Say) -> Data:
    """Two models on one worker in three orders."""
    given = [(*one, REQUESTS) for one in product(pairs(), LOADS, SHARES)]
    return {"seeds": SEEDS, "requests": REQUESTS, "largest": LARGEST, "cells": spread(cell, given, say)}


def mean(cell: Data, order: str) -> float:
    return fmean(run["mean_ms"] for run in cell[order])


def above(cell: Data) -> list[float]:
    """By seed: the index's mean over the optimum's, less one."""
    runs = zip(cell["index"], cell["optimum"], strict=True)
    return [index["mean_ms"] / best["mean_ms"] - 1 for index, best in runs]


def gain(cell: Data, order: str = "index") -> float:
    """An order's mean over that in order of arrival, less one."""
    return mean(cell, order) / mean(cell, "arrival") - 1


def by_model(cell: Data, order: str, key: str) -> list[float]:
    """Each model's figure in ms, the mean over seeds."""
    return [fmean(values) for values in zip(*(run[key] for run in cell[order]), strict=True)]


def rises(cell: Data, order: str) -> list[float]:
    """By model: its p99 over that in order of arrival, less one."""
    pairs = zip(by_model(cell, order, "p99_ms"), by_model(cell, "arrival", "p99_ms"), strict=True)
    return [new / old - 1 for new, old in pairs]


def where(cell: Data) -> str:
    return f"{cell['pair']}, load {cell['load']:g}, {cell['share']:.0%} of it fast"


def missed(data: Data) -> list[str]:
    """Each target with the number of cells that miss it, and the worst."""
    cells = data["cells"]
    found = []
    targets: dict[str, tuple[float, Callable[[Data], float]]] = {
        f"within {WITHIN:.0%} of the optimum": (WITHIN, lambda cell: fmean(above(cell))),
        f"no p99 more than {RISE:.0%} above that in order of arrival": (RISE, lambda cell: max(rises(cell, "index"))),
    }
    for target, (most, figure) in targets.items():
        if far := [cell for cell in cells if figure(cell) > most]:
            one = max(far, key=figure)
            found.append(
                f"{target}: not in {len(far)} of {len(cells)} cells, at the most {figure(one):+.0%} ({where(one)})"
            )
    return found + [f"the mean falls: {gain(cell):+.1%} ({where(cell)})" for cell in cells if gain(cell) > 0]


def gained(data: Data, order: str) -> float:
    """On average over the cells."""
    return fmean(gain(cell, order) for cell in data["cells"])


def risen(data: Data) -> list[float]:
    """By cell: the largest rise of a model's p99 under the optimum."""
    return [max(rises(cell, "optimum")) for cell in data["cells"]]


def worst_error(data: Data) -> float:
    """By how much the optimum's simulated mean differs from the solved one, at the most."""
    return max(abs(mean(cell, "optimum") / cell["solved_ms"] - 1) for cell in data["cells"])
