"""Simulates `adaptive` with profiles that are known only with noise: `python -m experiments.policies.noisy_profiles`.

The devices and loads of docs/bench/policies.md. The scheduler has a profile that was measured with noise of 5, 15 or
30 %; the device takes the true times, each batch varied as well. Live batches correct the profile and tables are solved
again while it serves, by the server's own code. All policies get the same arrivals.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from app.engine.profiling.review import Review
from app.scheduler.estimates.curve import drawn, estimates
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.types import DeviceSpec, Program, Stage, WorkerSpec
from experiments.common.processes import spread
from experiments.common.simulated import Instants, Recorder, follow, stepped
from experiments.policies.simulated import LOADS, MEASURED, PROFILES, best_tables, devices
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from planner.node import PROGRAM, Node
from planner.simulated_device import Factors, SimulatedDevice
from planner.simulator import Simulator
from planner.tally import Tally

NOISES = (0.05, 0.15, 0.3)
VISITS = 8  # of each size, about what the server's idle profiler has time for
TAIL, TAIL_CHANCE = 8, 0.05  # so much more noise, so often
_WARM_NS = 3_000_000_000  # left out: no rate is known until the first tick, after a second
_QUEUE = 1 << 30
MOST_ABOVE = 0.01  # of the mean of `no_wait`
LEAST_GAIN = 0.8  # of that of exact tables, on measured devices
_GAINS = 0.02  # exact tables gain so much at least, where a part of the gain is given


@dataclass(frozen=True)
class Cell:
    """One device at one load, its profile known with so much noise."""

    device: str
    profile: ModelProfile
    load: float
    noise: float
    seed: int
    seconds: float


class Learner(Recorder):
    """A scheduler whose driver solves its tables again at ticks, as the engine does."""

    def __init__(self, device: DeviceSpec, profile: ModelProfile) -> None:
        super().__init__(device)
        self.solved = 0
        self._at_once = device.max_running
        self._review = Review(profile, 0, self._at_once)

    def tick(self, now: int) -> None:
        super().tick(now)
        corrected = self._review.corrected(self.states[PROGRAM].live_times, now)
        if corrected is not None:
            self.solved += 1
            stage = corrected.stage(self._at_once)
            self.control(PROGRAM, control.solve(stage, workers=self._at_once), now)


def repeated(true: Sequence[int], noise: float, seed: int) -> dict[int, list[float]]:
    """Visits of each size, pass by pass. Each adds an exponential share of mean `noise`, now and then TAIL times it."""
    draw = random.Random(seed)
    return {
        size: [ns * (1 + noise * draw.expovariate(1) * (TAIL if draw.random() < TAIL_CHANCE else 1))
               for _ in range(VISITS)]
        for size, ns in enumerate(true, 1)
    }  # fmt: skip


def lasting(true: Sequence[int], noise: float, seed: int) -> dict[int, list[float]]:
    """All visits of a size are off by the same share, normal with this deviation, which no repeating shows."""
    draw = random.Random(seed)
    off = [max(0.3, 1 + noise * draw.gauss(0, 1)) for _ in true]
    return {size: [ns * one * (1 + 0.02 * draw.expovariate(1)) for _ in range(VISITS)]
            for size, (ns, one) in enumerate(zip(true, off, strict=True), 1)}  # fmt: skip


KINDS = {"repeated": repeated, "lasting": lasting}


def known(times: Mapping[int, Sequence[float]]) -> ModelProfile:
    """The profile that the server would keep of these measurements."""
    found = estimates(times)
    return ModelProfile(tuple(map(round, drawn(found).values())), errors=tuple(one.error for one in found.values()))


def served(
    device: SimulatedDevice, policy: str, profile: ModelProfile, tables: ControlTables | None, arrivals: Instants,
    workers: int = 1, *, optimum: bool = False,
) -> Data:  # fmt: skip
    """Mean latency in ms from the warm-up on, and of the second half; how often tables were solved again.

    `optimum`: the tables are those of the optimum.
    """
    largest = profile.max_batch
    program = Program(PROGRAM, profile.model, (Stage(profile.stage(workers)),), policy, largest, _QUEUE, 0)
    spec = DeviceSpec((WorkerSpec(largest),) * workers, max_running=workers)
    scheduler = Learner(spec, profile) if policy == "adaptive" and profile.errors else Recorder(spec)
    node = Node(scheduler, program, device)
    if tables is not None and optimum:
        follow(scheduler, tables)
    elif tables is not None:
        scheduler.control(PROGRAM, tables, 0)
    simulator = Simulator([node], Tally())
    simulator.feed(arrivals.tolist())
    simulator.drain()
    latency = np.array([scheduler.latency_ns[number] for number in range(1, len(arrivals) + 1)]) / 1e6
    warm = int(np.searchsorted(arrivals, _WARM_NS))
    solved = scheduler.solved if isinstance(scheduler, Learner) else 0
    return {"all": float(latency[warm:].mean()), "late": float(latency[len(latency) // 2 :].mean()), "solved": solved}


def simulate(cell: Cell) -> list[dict[str, Any]]:
    """`adaptive` with profiles of both kinds, beside `no_wait` and `adaptive` with exact tables."""
    true = ModelProfile(cell.profile.occupied_ns)
    rate = cell.load * true.peak
    arrivals = stepped([(round(rate * cell.seconds), rate)], cell.seed)

    def device() -> SimulatedDevice:
        return SimulatedDevice(cell.profile, factor=Factors(cell.noise / 2, [cell.seed]))

    plain = served(device(), "no_wait", true, None, arrivals)
    exact = served(device(), "adaptive", true, best_tables(true, rate)[1], arrivals, optimum=True)
    found = []
    for number, (kind, measured) in enumerate(KINDS.items()):
        profile = known(measured(true.batch_ns, cell.noise, 1000 * cell.seed + number))
        ours = served(device(), "adaptive", profile, control.solve(profile.stage()), arrivals)
        found.append(
            {"device": cell.device, "load": cell.load, "noise": cell.noise, "kind": kind, "seed": cell.seed,
             "no_wait": plain, "exact": exact, "adaptive": ours}
        )  # fmt: skip
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="profiles of each kind [3]")
    parser.add_argument("--first", type=int, default=100, help="the first seed; constants were chosen with 0 [100]")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a run, simulated [60]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    profiles = devices(PROFILES)
    given = [
        Cell(name, profiles[name], load, noise, seed, chosen.seconds)
        for name, load, noise, seed in product(
            profiles, LOADS, NOISES, range(chosen.first, chosen.first + chosen.seeds)
        )
    ]
    cells = [one for found in spread(simulate, given, run.say) for one in found]
    return {"seeds": chosen.seeds, "seconds": chosen.seconds, "visits": VISITS, "cells": cells}


def above(cells: Sequence[Data], part: str) -> list[float]:
    return [cell["adaptive"][part] / cell["no_wait"][part] - 1 for cell in cells]


def gain(cells: Sequence[Data]) -> float | None:
    """The part of the gain of exact tables that is had in the second half; None where there is little to gain."""
    plain, exact, ours = (sum(cell[one]["late"] for cell in cells) for one in ("no_wait", "exact", "adaptive"))
    return (plain - ours) / (plain - exact) if plain - exact >= _GAINS * plain else None


def groups(data: Data) -> dict[tuple[str, str, float, float], list[Data]]:
    """By kind of noise, device, noise and load."""
    found: dict[tuple[str, str, float, float], list[Data]] = {}
    for cell in data["cells"]:
        found.setdefault((cell["kind"], cell["device"], cell["noise"], cell["load"]), []).append(cell)
    return found


def missed(data: Data) -> list[str]:
    """Where the mean over profiles is above `no_wait` by more than a percent, or too little of the gain is had."""
    lines = []
    for (kind, device, noise, load), cells in groups(data).items():
        where = f"{kind}, {device}, noise {noise:.0%}, load {load:g}"
        for part, name in (("all", "the whole run"), ("late", "the second half")):
            if (mean := fmean(above(cells, part))) > MOST_ABOVE:
                lines.append(f"{where}: {mean:+.1%} above no_wait in {name}")
        share = gain(cells)
        if device in MEASURED and share is not None and share < LEAST_GAIN:
            lines.append(f"{where}: {share:.0%} of the gain")
    return lines


def described(cells: Sequence[Data]) -> str:
    whole, late = (f"{fmean(found):+.1%} ({max(found):+.1%})" for found in (above(cells, "all"), above(cells, "late")))
    share = gain(cells)
    return f"{whole}; {late}; {'-' if share is None else f'{share:.0%}'}"


PAGE = Page("noisy-profiles", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.policies.noisy_profiles", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
