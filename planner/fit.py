"""Fits the costs of a server's HTTP front from loads that were measured.

CPU times of several loads tell the cost of a request from that of a batch. The slowdown of batches is found by
simulating the same loads until simulated batches are as slow as measured ones: docs/theory/simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.scheduler.estimates.profile import Profile
from planner.front_load import FrontLoad

from .fleet import Setup, counted
from .simulated_front import FrontCosts

_SLOWED = (0.0, *(round(0.1 * 1.6**step, 3) for step in range(12)))  # slowdowns tried: 0 to 18
_REQUESTS = 500  # simulated for a load: enough for means to a few per cent
_WORSE = 2  # stop after so many slowdowns in a row that fit worse than a smaller one
_ALIKE = 2.0  # if rows per batch differ less between loads, requests and batches cannot be separated


def front_costs(loads: Sequence[FrontLoad]) -> FrontCosts:
    """The costs of requests and batches. The spread is that of the lightest load, which must be the first."""
    call, batch = _parts(loads, [load.loop_s for load in loads])
    decode, group = _parts(loads, [load.helpers_s for load in loads])
    call_ns, batch_ns, decode_ns, group_ns = (round(1e9 * one) for one in (call, batch, decode, group))
    return FrontCosts(call_ns, batch_ns, decode_ns, group_ns, spread=loads[0].spread)


def _parts(loads: Sequence[FrontLoad], used_s: Sequence[float]) -> tuple[float, float]:
    """The CPU seconds of each request and of each batch, given those of whole loads.

    By least squares, with each load weighted by its number of requests: the few requests of a light load meet cold
    caches, which must not count as a cost of small batches.
    """
    requests = np.array([load.requests for load in loads])
    batches = np.array([max(1.0, load.batch_count) for load in loads])
    each_has = batches / requests
    if each_has.max() > _ALIKE * each_has.min():
        weights = np.sqrt(requests)
        (each, shared), *_ = np.linalg.lstsq(np.stack([requests, batches], 1) / weights[:, None], used_s / weights)
        if min(each, shared) >= 0:  # else it is only noise
            return float(each), float(shared)
    return float(sum(used_s) / requests.sum()), 0.0


def fit(profile: Profile, costs: FrontCosts, loads: Sequence[FrontLoad]) -> FrontCosts:
    """The costs with fitted `scale`, `slowed` and `error`, by least squares of relative errors.

    `loads`: the lightest one first. With a single load the effect of the rate is unknown: then `slowed` is 0.
    """
    loads = [load for load in loads if load.batches]
    if not loads:
        return costs
    setup = Setup(profile, 1.0, "no_wait", _REQUESTS)  # how large batches are matters little, and it needs no tables
    best, found, worse = math.inf, costs, 0
    for slowed in _SLOWED if len(loads) > 1 else _SLOWED[:1]:
        error, fitted = _at(setup, replace(costs, slowed=slowed), loads)
        if error < best:
            # The lightest load is fitted exactly, so it says nothing about the error.
            best, worse = error, 0
            found = replace(fitted, error=math.sqrt(error / max(1, len(loads) - 1)))
        elif (worse := worse + 1) == _WORSE:
            break
    return found


def _at(setup: Setup, costs: FrontCosts, loads: Sequence[FrontLoad]) -> tuple[float, FrontCosts]:
    """The error with this slowdown, and the costs with the scale that fits the lightest load exactly."""
    overs = [load.over(setup.profile.batch_ns) for load in loads]
    scale = overs[0]
    scale *= overs[0] / _over(setup, scale, costs, loads[0].rate)
    error = sum(
        math.log(_over(setup, scale, costs, load.rate) / over) ** 2 for load, over in zip(loads, overs, strict=True)
    )
    return error, replace(costs, scale=scale)


def _over(setup: Setup, scale: float, costs: FrontCosts, rate: float) -> float:
    """Simulated batch times over those of the profile."""
    tally = counted(replace(setup, profile=setup.profile.scaled(scale), front=costs, rate=rate))
    size = tally.rows / tally.units
    below, times = math.floor(size), setup.profile.batch_ns
    said = times[below - 1] + (size - below) * (times[min(below, len(times) - 1)] - times[below - 1])
    return tally.busy_ns / tally.units / said
