"""Simulates four and eight workers of one model against the optimum: `python -m experiments.many several`.

Workers that do not slow each other, Poisson arrivals, loads as shares of what all serve at best, and batches so small
that the optimum can be computed (`experiments.many.several_optimum`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from app.scheduler.estimates.parts import padded
from app.scheduler.estimates.profile import ModelProfile
from experiments.common.processes import spread
from experiments.common.simulated import Policy, Server, serve, stepped
from experiments.many.several_optimum import Optimum
from experiments.policies.simulated import PROFILES, devices
from loadtest.common.experiment import Data, Say
from planner.simulated_device import SimulatedDevice

DEVICES = ("mlp", "7 + 0.6 b")  # of others a batch takes many times as long as a row: too many states
LOADS = (0.25, 0.65, 0.9)
#: Workers, their largest batch, and steps of the time grid: states are as many as ways to spread these over workers.
SIZES = ((4, 8, 16), (8, 4, 8))
REQUESTS = 6_000  # of a run, at least
_WARM_NS = 3_000_000_000  # left out: `adaptive` knows no rate until the first tick, after a second
_LEAST_S = 8  # length of a run
_COOL = 100  # requests at the end that are left out


def cell(given: tuple[str, ModelProfile, int, int, float, int]) -> Data:
    """All policies on one device at one load: mean latencies in ms."""
    name, alone, workers, steps, load, requests = given
    # Exact times: what their errors would leave open is not what is compared.
    profile = replace(alone, concurrency_ns={workers: alone.batch_ns}, errors=(), handover_ns=None)
    times = padded(profile.batch_ns)[0]
    rate = load * workers * max(rows * 1e9 / time for rows, time in enumerate(times, 1))
    instants = stepped([(max(requests, round(_LEAST_S * rate)), rate)], 0)
    warm = min(len(instants) // 2, int(np.searchsorted(instants, _WARM_NS)))

    def mean_ms(policy: str) -> float:
        server = Server(Policy(policy), profile, (profile.max_batch,) * workers, workers)
        return float(serve(server, instants, SimulatedDevice(profile, workers), warm).latency_ms[:-_COOL].mean())

    best = Optimum([time / 1e6 for time in times], rate / 1e3, workers, steps)
    return {
        "device": name, "workers": workers, "largest": profile.max_batch, "load": load, "rate": rate,
        "computed_ms": best.mean, "optimum": [float(best.latencies(instants / 1e6)[warm:-_COOL].mean())],
        "adaptive": [mean_ms("adaptive")], "no_wait": [mean_ms("no_wait")],
    }  # fmt: skip


def measure(say: Say) -> Data:
    """Four and eight workers of one model against the optimum."""
    profiles = devices(PROFILES)
    given = [
        (name, profiles[name].up_to(largest), workers, steps, load, REQUESTS)
        for workers, largest, steps in SIZES
        for name in DEVICES
        for load in LOADS
    ]
    return {"requests": REQUESTS, "cells": spread(cell, given, say)}
