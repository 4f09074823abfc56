"""Finds what requests cost a server beside their batches, and by how much these are slower than its profile, from what
both took at some loads.

Each load gives the CPU time of threads for so many requests in so many batches, so that a request's part and a batch's
part can be told apart.

The simulated batches are to be as slow as those measured. No formula says how much of the time a batch and the threads
of the front run at once, since slower batches change that; so the same loads are simulated, for one slowdown after the
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.scheduler.estimates.front_load import FrontLoad
from app.scheduler.estimates.profile import ModelProfile

from .fleet import Setup, counted
from .front import FrontCosts

_SLOWED = (0.0, *(round(0.1 * 1.6**step, 3) for step in range(12)))  # to 18 times as long
_REQUESTS = 500  # of a load: means to some per cent
_WORSE = 2  # slowdowns in a row that fit worse than a smaller one: larger ones do, too
_ALIKE = 2.0  # loads whose rows a batch differ by less do not tell requests and batches apart


def front_costs(loads: Sequence[FrontLoad]) -> FrontCosts:
    """What requests and batches cost; the spread is that of the lightest load, which is the first."""
    call, batch = _parts(loads, [load.loop_s for load in loads])
    decode, group = _parts(loads, [load.helpers_s for load in loads])
    call_ns, batch_ns, decode_ns, group_ns = (round(1e9 * one) for one in (call, batch, decode, group))
    return FrontCosts(call_ns, batch_ns, decode_ns, group_ns, spread=loads[0].spread)


def _parts(loads: Sequence[FrontLoad], used_s: Sequence[float]) -> tuple[float, float]:
    """What each request and each batch took of what was used. Requests that are read together are batched together.

    Least squares in which a load counts as its number of requests: the few of a light load find cold caches, which are
    no cost of their batches of one row.
    """
    requests = np.array([load.requests for load in loads])
    batches = np.array([max(1.0, load.batch_count) for load in loads])
    each_has = batches / requests
    if each_has.max() > _ALIKE * each_has.min():
        weights = np.sqrt(requests)
        (each, shared), *_ = np.linalg.lstsq(np.stack([requests, batches], 1) / weights[:, None], used_s / weights)
        if min(each, shared) >= 0:  # else noise
            return float(each), float(shared)
    return float(sum(used_s) / requests.sum()), 0.0


def fit(profile: ModelProfile, costs: FrontCosts, loads: Sequence[FrontLoad]) -> FrontCosts:
    """The costs with `scale` and `slowed`, by least squares of relative errors. `loads`: the lightest one first.

    Of a single load nobody knows what another rate would change: then `slowed` is 0.
    """
    loads = [load for load in loads if load.batches]
    if not loads:
        return costs
    setup = Setup(profile, 1.0, "no_wait", _REQUESTS)  # how large batches are matters little, and it needs no tables
    best, found, worse = math.inf, costs, 0
    for slowed in _SLOWED if len(loads) > 1 else _SLOWED[:1]:
        error, fitted = _at(setup, replace(costs, slowed=slowed), loads)
        if error < best:
            best, found, worse = error, fitted, 0
        elif (worse := worse + 1) == _WORSE:
            break
    return found


def _at(setup: Setup, costs: FrontCosts, loads: Sequence[FrontLoad]) -> tuple[float, FrontCosts]:
    """The error of this slowdown, and the costs with the scale that makes batches of the lightest load right."""
    overs = [load.over(setup.profile.batch_ns) for load in loads]
    scale = overs[0]
    scale *= overs[0] / _over(setup, scale, costs, loads[0].rate)
    error = sum(
        math.log(_over(setup, scale, costs, load.rate) / over) ** 2 for load, over in zip(loads, overs, strict=True)
    )
    return error, replace(costs, scale=scale)


def _over(setup: Setup, scale: float, costs: FrontCosts, rate: float) -> float:
    """What batches take over what the profile says, simulated."""
    tally = counted(replace(setup, profile=setup.profile.scaled(scale), front=costs, rate=rate))
    size = tally.rows / tally.units
    below, times = math.floor(size), setup.profile.batch_ns
    said = times[below - 1] + (size - below) * (times[min(below, len(times) - 1)] - times[below - 1])
    return tally.busy_ns / tally.units / said
