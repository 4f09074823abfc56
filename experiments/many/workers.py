"""Simulates two workers of one model against the optimum: `python -m experiments.many workers`.

The devices of `experiments.policies.simulated`, each with two workers that run at once, Poisson arrivals, loads as
shares of what both serve at best. On some of them two units at once slow each other. The yardstick is the solved
decision process (`app.scheduler.optimal.two_workers`), with more columns than the tables of `adaptive` have; its policy
is simulated on the same arrivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import two_workers
from app.scheduler.optimal.process import Process
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.optimal.time_left import TimeLeft, kept_sizes
from experiments.common.processes import spread
from experiments.common.simulated import Instants, Policy, Server, steady, stepped
from experiments.policies.simulated import PROFILES, devices
from loadtest.common.experiment import Data, Say
from planner.simulated_device import SimulatedDevice
from planner.two_worker_optimum import curves, peak

LOADS = (0.1, 0.25, 0.45, 0.65, 0.85, 0.9)  # also as far as may be from those that tables are solved for
DELAYS = (1, 2, 5)  # ms, of window
#: Times of a batch beside another over its times alone, of some devices; none slow each other on the rest.
SLOWED = {"mlp": (1.3, 2.2), "7 + 0.6 b": (1.3, 3.0)}
SEEDS, REQUESTS = 1, 8_000  # of each cell; requests of a run, at least
TWO = 0.02  # `adaptive` is to be so near to the optimum
_PHASES = 8
_LEAST_S = 10  # length of a run


def slowed(profile: Profile, factor: float) -> Profile:
    """The profile of two that run at once, each `factor` times as slow as alone."""
    return replace(profile, concurrency_ns={2: tuple(round(time * factor) for time in profile.batch_ns)})


def optimum(profile: Profile, rate: float) -> tuple[two_workers.Solution, ControlTables]:
    """The best policy, and control tables by which it is followed."""
    together, apart, sizes = curves(profile)
    kept = kept_sizes(len(together), 2)
    beside = TimeLeft(kept, tuple(together[size - 1] for size in kept), _PHASES)
    process = Process(together, apart, rate, beside)
    best = two_workers.solve(process, process.allowed(idling=True))
    free, *others = best.table
    tables = ControlTables(
        (0.0,), (free,), free[-1], sizes, peak(profile), 2, padded(profile.batch_ns)[1],
        beside=beside, others=(tuple(others),), mean_ns=(best.mean_ns,),
    )  # fmt: skip
    return best, tables


def mean_ms(server: Server, instants: Instants) -> float:
    """Mean latency, without the beginning and the end."""
    return float(steady(server, instants, SimulatedDevice(server.profile, 2)).latency_ms.mean())


def cell(given: tuple[str, Profile, float, float, int]) -> Data:
    """All policies on one device at one load: mean latencies in ms by seed."""
    name, alone, factor, load, requests = given
    profile = slowed(alone, factor)
    rate = load * peak(profile)
    arrivals = [stepped([(max(requests, round(_LEAST_S * rate)), rate)], seed) for seed in range(SEEDS)]

    def means(policy: Policy, tables: ControlTables | None = None, some: Sequence[Instants] = arrivals) -> list[float]:
        server = Server(policy, profile, (profile.max_batch,) * 2, 2, tables=tables)
        return [mean_ms(server, instants) for instants in some]

    delay = min(DELAYS, key=lambda ms: means(Policy("window", ms), some=arrivals[:1])[0])
    best, tables = optimum(profile, rate)
    return {
        "device": name, "factor": factor, "load": load, "rate": rate, "delay_ms": delay,
        "computed_ms": best.mean_ns / 1e6, "optimum": means(Policy("adaptive"), tables),
        "adaptive": means(Policy("adaptive")), "no_wait": means(Policy("no_wait")),
        "window": means(Policy("window", delay)),
    }  # fmt: skip


def measure(say: Say) -> Data:
    """Two workers of one model against the optimum."""
    profiles = devices(PROFILES)
    cases = [(name, factor) for name in profiles for factor in (1.0, *SLOWED.get(name, ()))]
    given = [(name, profiles[name], factor, load, REQUESTS) for name, factor in cases for load in LOADS]
    return {"seeds": SEEDS, "requests": REQUESTS, "cells": spread(cell, given, say)}


def above(cell: Data, policy: str) -> list[float]:
    """By seed: the distance to the optimum's policy on the same arrivals, as a share."""
    return [one / best - 1 for one, best in zip(cell[policy], cell["optimum"], strict=True)]


def worst(data: Data) -> float:
    """The largest distance of `adaptive`."""
    return max(fmean(above(cell, "adaptive")) for cell in data["cells"])


def missed(data: Data) -> list[str]:
    lines = []
    for cell in data["cells"]:
        distance = fmean(above(cell, "adaptive"))
        if distance > TWO:
            lines.append(f"{cell['device']}, x {cell['factor']:g}, load {cell['load']:g}: {distance:+.1%}")
    return lines
