"""Simulates calls with deadlines: `python -m experiments.many deadlines`.

The objective `deadline` against serving all that waits and `window`: the largest rate at which 99 % of calls end in
time, device time at 0.6 of the bound, and rows of different lengths. Workers do not slow one another. The bound is that
of N staggered workers and even arrivals: N b / T(b) for the largest b with (1 + 1/N) T(b) <= the deadline (Symphony,
arXiv 2308.07470). Arrivals are Poisson where nothing else is said.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from app.scheduler.estimates.profile import ModelProfile, linear, parse
from experiments.common.processes import spread
from experiments.many.clairvoyant import in_time
from experiments.policies.lengths import GLUE
from loadtest.common.experiment import Data, Say
from loadtest.common.paths import DOCS
from planner.fleet import Setup, counted

WORKERS = (2, 4, 8)
WAYS: dict[str, dict[str, Any]] = {
    "deadline": {"objective": "deadline"},
    "all that waits": {"policy": "no_wait"},
    "window": {"policy": "window"},
}
SHARE = 0.99  # of calls that must end in time
MODERATE = 0.6  # of the bound, at which device time is compared
HIGH = 0.9
REACHED = 0.9  # of the bound, at which that share does
SAVED = 0.4  # of the device time of serving all that waits, at 0.6 of the bound
BETTER, TARGET_MS = 1.5, 30  # times the share of `window`, at deadlines up to these ms, beyond what is served
SEEDS, REQUESTS = 1, 10_000  # of each cell; requests of a run
_WARM_S = 1.1
_STEPS = 7  # that halve the range of loads searched
_RANGE = (0.2, 1.2)  # of the bound
_NEAR, _SURE = 0.003, 4  # so near to the share, so many times as many calls decide: a short run is off by as much
_PEAK = 250.0  # rows/s that the encoder serves by length in a closed loop (`experiments.policies.lengths`)
LOADS = (0.4, 0.8, 1.2, 1.6)  # of it
TIGHT_MS = (20, 30, 60)
DELAYS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0)  # of `window`, of which the best counts
VARIED: dict[str, dict[str, Any]] = {
    "Poisson": {},
    "bursty, gamma:2": {"arrivals": "gamma:2"},
    "batch times gamma:0.1": {"service": "gamma:0.1"},
    "batch times gamma:0.3": {"service": "gamma:0.3"},
}


@dataclass(frozen=True)
class Device:
    """T(b) = `fixed_ms` + `row_ms` x b on each of several workers, and the time that calls have."""

    name: str
    fixed_ms: float
    row_ms: float
    deadline_ms: float
    largest: int = 64  # rows of a unit

    def time(self, rows: float) -> float:
        return self.fixed_ms + self.row_ms * rows

    def bound(self, workers: int, wait: float | None = None) -> tuple[float, int]:
        """Rows per second, and of a unit. A row waits `wait` units' time for the next worker; None: 1 / `workers`."""
        longest = self.deadline_ms / (1 + (1 / workers if wait is None else wait))
        rows = min(self.largest, int((longest - self.fixed_ms) / self.row_ms + 1e-9))
        return workers * rows / self.time(rows) * 1e3, rows

    def least(self, rate: float) -> float:
        """Device ms a row at this rate, with even arrivals: as many go together as come while the first can wait."""
        rows = (1 + rate / 1e3 * (self.deadline_ms - self.fixed_ms)) / (1 + rate / 1e3 * self.row_ms)
        return self.time(rows) / rows

    def setup(self, workers: int, **options: Any) -> Setup:
        profile = linear(self.fixed_ms, self.row_ms, self.largest)
        if workers > 1:
            profile = replace(profile, concurrency_ns={workers: profile.batch_ns})
        capacities, device = (self.largest,) * workers, "shared" if workers > 1 else "serial"
        return Setup(
            profile, None, workers=capacities, device=device, deadline_ns=round(self.deadline_ms * 1e6), **options
        )


DEVICES = (
    Device("ResNet-50", 5.072, 1.053, 25),  # of the paper
    Device("7 + 0.6 b", 7, 0.6, 40),
    Device("18 + 5 b", 18, 5, 70),
)


def served(setup: Setup, rate: float, requests: int, seeds: int) -> dict[str, float]:
    """Share of calls that end in time, device ms of each of these, rows of a unit.

    Not counted is the first second, in which the scheduler does not know the rate: a run of it alone is subtracted.
    """
    found = {"requests": 0, "completed": 0, "unit_ns": 0, "rows": 0, "units": 0}
    for seed in range(seeds):
        for count, sign in ((round(_WARM_S * rate) + requests, 1), (round(_WARM_S * rate), -1)):
            tally = counted(replace(setup, rate=rate, requests=count, seed=seed).solved())
            for name in found:
                found[name] += sign * getattr(tally, name)
    return {
        "in_time": found["completed"] / found["requests"],
        "row_ms": found["unit_ns"] / found["completed"] / 1e6,
        "batch": found["rows"] / found["units"],
    }


def highest(share: Callable[[float], float]) -> float:
    """The largest load, as a share of the bound, at which 99 % of calls end in time. `share`: of calls, by load."""
    low, high = _RANGE
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if share(middle) >= SHARE:
            low = middle
        else:
            high = middle
    return low


def study(given: tuple[Device, int, int, int]) -> dict[str, Any]:
    """One device with so many workers: the largest rates, device time, other assumptions."""
    device, workers, requests, seeds = given
    bound, rows = device.bound(workers)
    setups = {way: device.setup(workers, **options) for way, options in WAYS.items()}

    def share(way: str, load: float) -> float:
        found = served(setups[way], load * bound, requests, seeds)["in_time"]
        near = abs(found - SHARE) < _NEAR
        return served(setups[way], load * bound, _SURE * requests, seeds)["in_time"] if near else found

    def known(load: float) -> float:
        return in_time(device.fixed_ms, device.row_ms, device.deadline_ms, load * bound)

    return {
        "device": device.name,
        "workers": workers,
        "deadline_ms": device.deadline_ms,
        "bound": bound,
        "rows": rows,
        "uncoordinated": device.bound(workers, wait=1.0)[0],
        "highest": {way: highest(partial(share, way)) for way in setups if way != "window"},
        "moderate": {way: served(setup, MODERATE * bound, requests, seeds) for way, setup in setups.items()},
        "least_ms": device.least(MODERATE * bound),
        "high": {way: served(setup, HIGH * bound, requests, seeds)["in_time"] for way, setup in setups.items()},
        "varied": {
            name: served(replace(setups["deadline"], **options), MODERATE * bound, requests, seeds)
            for name, options in VARIED.items()
        },
        "known": highest(known) if workers == 2 else None,
    }


def encoder() -> ModelProfile:
    return parse(json.loads((DOCS / "profiles" / "encoder-lengths.json").read_text()))


def lengths(given: tuple[float, float, int, int]) -> dict[str, Any]:
    """Rows with lengths as in GLUE on one worker: share in time of each way."""
    deadline_ms, load, requests, seeds = given
    base = Setup(encoder(), None, lengths=GLUE, deadline_ns=round(deadline_ms * 1e6))

    def share(**options: Any) -> float:
        return served(replace(base, **options), load * _PEAK, requests, seeds)["in_time"]

    windows = {delay: share(policy="window", max_delay_ns=round(delay * 1e6)) for delay in DELAYS_MS}
    best = max(windows, key=lambda delay: windows[delay])
    return {
        "deadline_ms": deadline_ms, "load": load, "window": windows[5.0], "best window": windows[best],
        "best_delay_ms": best, "by latency": share(), "deadline": share(objective="deadline"),
    }  # fmt: skip


def measure(say: Say) -> Data:
    """Goodput and device time, simulated."""
    cells = [(device, workers, REQUESTS, SEEDS) for device in DEVICES for workers in WORKERS]
    studies = spread(study, cells, say)
    cases = [(float(tight), load, REQUESTS, SEEDS) for tight in TIGHT_MS for load in LOADS]
    glue = spread(lengths, cases, say)
    return {"requests": REQUESTS, "seeds": SEEDS, "peak": _PEAK, "studies": studies, "lengths": glue}


def saved(ways: Data) -> float:
    """Device time of the objective less than that of serving all that waits, as a share."""
    return float(1 - ways["deadline"]["row_ms"] / ways["all that waits"]["row_ms"])


def savable(found: Data) -> float:
    return float(1 - found["least_ms"] / found["moderate"]["all that waits"]["row_ms"])


def better(case: Data) -> float:
    return float(case["deadline"] / case["window"])


def missed(data: Data) -> list[str]:
    lines = []
    for found in data["studies"]:
        name = f"{found['device']}, {found['workers']} workers"
        if found["highest"]["deadline"] < REACHED:
            lines.append(f"{name}: 99 % in time up to {found['highest']['deadline']:.2f} of the bound")
        gain = saved(found["moderate"])
        if gain < SAVED:
            lines.append(f"{name}: {gain:.0%} less device time, at most {savable(found):.0%} with even arrivals")
        if found["moderate"]["deadline"]["in_time"] < SHARE:
            lines.append(f"{name}: {found['moderate']['deadline']['in_time']:.2%} in time at 0.6 of the bound")
    tight = [case for case in data["lengths"] if case["deadline_ms"] <= TARGET_MS and case["load"] > 1]
    return lines + [
        f"{case['deadline_ms']:g} ms, load {case['load']:g}: {better(case):.2f} x `window`"
        for case in tight
        if better(case) < BETTER
    ]
