"""Finds by how much the batches of a server are slower than its profile, from what they took at some loads.

The simulated batches are to be as slow as those measured. No formula says how much of the time a batch and the threads
of the front run at once, since slower batches change that; so the same loads are simulated, for one slowdown after the
other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from app.scheduler.estimates.profile import ModelProfile

from .fleet import Setup, counted
from .front import FrontCosts

_SLOWED = (0.0, *(round(0.1 * 1.6**step, 3) for step in range(12)))  # to 18 times as long
_REQUESTS = 500  # of a load: means to some per cent
_WORSE = 2  # slowdowns in a row that fit worse than a smaller one: larger ones do, too


@dataclass(frozen=True, slots=True)
class Load:
    """What batches took on average over what the profile says (`over`), at so many requests a second."""

    rate: float
    over: float


def fit(profile: ModelProfile, costs: FrontCosts, loads: Sequence[Load]) -> FrontCosts:
    """The costs with `scale` and `slowed`, by least squares of relative errors. `loads`: the lightest one first."""
    if not loads:
        return costs
    setup = Setup(profile, 1.0, "no_wait", _REQUESTS)  # how large batches are matters little, and it needs no tables
    best, found, worse = math.inf, costs, 0
    for slowed in _SLOWED:
        error, fitted = _at(setup, replace(costs, slowed=slowed), loads)
        if error < best:
            best, found, worse = error, fitted, 0
        elif (worse := worse + 1) == _WORSE:
            break
    return found


def _at(setup: Setup, costs: FrontCosts, loads: Sequence[Load]) -> tuple[float, FrontCosts]:
    """The error of this slowdown, and the costs with the scale that makes batches of the lightest load right."""
    lightest = loads[0]
    scale = lightest.over
    scale *= lightest.over / _over(setup, scale, costs, lightest.rate)
    error = sum(math.log(_over(setup, scale, costs, load.rate) / load.over) ** 2 for load in loads)
    return error, replace(costs, scale=scale)


def _over(setup: Setup, scale: float, costs: FrontCosts, rate: float) -> float:
    """What batches take over what the profile says, simulated."""
    tally = counted(replace(setup, profile=setup.profile.scaled(scale), front=costs, rate=rate))
    size = tally.rows / tally.units
    below, times = math.floor(size), setup.profile.batch_ns
    said = times[below - 1] + (size - below) * (times[min(below, len(times) - 1)] - times[below - 1])
    return tally.busy_ns / tally.units / said
