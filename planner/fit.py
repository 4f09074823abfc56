"""Fits the costs of a server's HTTP front from loads that were measured.

CPU times of several loads tell the cost of a request from that of a batch. How much longer batches take than in the
profile, and how much of that the busy front adds, is a line through the loads: docs/theory/simulator.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from app.scheduler.estimates.profile import Profile
from planner.front_load import FrontLoad

from .simulated_front import FrontCosts

_ALIKE = 2.0  # if rows per batch differ less between loads, requests and batches cannot be separated
_NOISE = 0.03  # of the batch times of one load, as a share: the machine drifts
_SLOWED = 1.0  # the slowdown by a busy thread that is expected, as a standard deviation from none


def front_costs(loads: Sequence[FrontLoad]) -> FrontCosts:
    """The costs of requests and batches."""
    call, batch = _parts(loads, [load.loop_s for load in loads])
    decode, group = _parts(loads, [load.helpers_s for load in loads])
    return FrontCosts(*(round(1e9 * one) for one in (call, batch, decode, group)))


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
    """The costs with fitted `scale`, `slowed`, `spread` and `error`; unchanged if no load has batches.

    Batch times over those of the profile are a line over the share of time in which the front is busy, by least squares
    in which each load counts for the seconds that its batches took: those of a light load are few and meet cold caches.
    As the loads differ by noise as well, the slope is drawn towards 0 by what is known beforehand (a ridge).
    """
    loads = [load for load in loads if load.batches]
    if not loads:
        return costs
    weights = np.array([load.batch_s for load in loads])
    overs, busy, spreads = np.array([(load.over(profile.batch_ns), load.busy, load.spread) for load in loads]).T
    over, share, spread = (float(np.average(values, weights=weights)) for values in (overs, busy, spreads))
    away = busy - share
    prior = weights.mean() * (_NOISE / _SLOWED) ** 2
    slope = float((weights * away * overs).sum() / ((weights * away**2).sum() + prior))
    slope = min(max(0.0, slope), over / 2 / max(share, 1e-9))  # an idle front leaves at least half of the time
    scale = over - slope * share
    off = np.log(overs / (scale + slope * busy))
    error = math.sqrt(float(np.average(off**2, weights=weights)))
    return replace(costs, scale=scale, slowed=slope / scale, spread=spread, error=error)
