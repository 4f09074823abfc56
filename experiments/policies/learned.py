"""How near learned batch times come to known ones, simulated: `python -m experiments.policies.learned`.

Each server begins with a warm-up that ran every size once, never idles, and learns from the batches that it serves. It
is compared on the same arrivals and noise with tables of the true curve (`exact`), the same that are told the true rate
and speed at each moment (`told`), and `no_wait`. Writes docs/bench/learned.json.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal import solver as optimal
from app.scheduler.optimal.tables import ControlTables
from experiments.common.processes import spread
from experiments.common.simulated import Instants
from experiments.policies.learning import (
    PEAK, STEADY, Case, Evidence, Learner, Phases, Served, curves, exact_tables, peak,
)  # fmt: skip
from loadtest.common.experiment import Data, Say, in_sections
from loadtest.common.page import Page
from loadtest.common.paths import DOCS
from planner.node import PROGRAM

#: Warm-up and traffic. A spiked warm-up took four times as long for a tenth of the sizes.
EVIDENCE = {
    "quiet": Evidence(0.03),
    "spiked": Evidence(0.05, spikes=(0.01, 3.0), warm=(0.1, 4.0)),
    "loud": Evidence(0.15),
}
NOISES = {"15 %": Evidence(0.15), "30 %": Evidence(0.30)}
SEEDS = {1: 4, 2: 1}  # by workers: solving tables of two takes nearly all of the time
COLD_LOADS, GAIN_LOADS = (0.3, 0.6, 0.85), (0.5, 0.7, 0.9)
MINUTES = (1, 5)  # of live traffic, after which the gain is looked at
LEAST_GAIN = 0.02  # of the exact table over `no_wait`, below which there is nothing to keep
LOW, HIGH = 0.3, 0.9  # loads of bursts
BURSTS_S, COLD_S, FIRST_S, WINDOW_S = 300.0, 90.0, 60.0, 5.0
TRACE, TRACE_LOAD, REPEATED = DOCS / "azure-conversations.csv", 0.6, 5
SLOWER = Phases((0.0, 60.0, 120.0), (1.0, 1.5, 1.0))
SLOWER_LOAD = 0.5


class Cell(NamedTuple):
    curve: str
    workers: int
    evidence: str
    load: float
    seeds: int


def cold_cell(cell: Cell) -> Data:
    """Means over those of `exact` in the first minute and after it; the worst five seconds over those of `no_wait`."""
    profile = curves()[cell.curve]
    rate = Phases((0.0,), (cell.load * peak(profile, cell.workers),))
    found: dict[str, list[list[float]]] = {how: [] for how in ("exact", "no_wait", "learned")}
    starts = np.arange(0, COLD_S, WINDOW_S)
    for seed in range(cell.seeds):
        instants = rate.arrivals(COLD_S, seed)
        case = Case(profile, EVIDENCE[cell.evidence], instants, rate, cell.workers, seed=seed)
        for how, means in found.items():
            latency = Served(case, how).latency_ms()
            windows = [_mean(latency, instants, start, start + WINDOW_S) for start in starts]
            means.append([_mean(latency, instants, 0, FIRST_S), _mean(latency, instants, FIRST_S, COLD_S), *windows])
    exact, no_wait, learned = (np.mean(found[how], axis=0) for how in ("exact", "no_wait", "learned"))
    return cell._asdict() | {
        "exact_ms": exact[0], "first": learned[0] / exact[0], "after": learned[1] / exact[1],
        "no_wait": no_wait[0] / exact[0], "five": max(learned[2:] / no_wait[2:]),
        "five_exact": max(exact[2:] / no_wait[2:]),
    }  # fmt: skip


def gain_cell(cell: Cell) -> Data:
    """The share kept of the gain of the exact table over `no_wait`, by minutes of traffic; nothing if that is small.

    The table in use is evaluated exactly on the true curve.
    """
    profile = curves()[cell.curve]
    rate = Phases((0.0,), (cell.load * peak(profile, 1),))
    no_wait, exact = mean_ns(profile, rate.values[0], None), mean_ns(profile, rate.values[0], exact_tables(profile, 1))
    kept: list[list[float]] = [[] for _ in MINUTES]
    if no_wait < (1 + LEAST_GAIN) * exact:
        return {}
    for seed in range(cell.seeds):
        case = Case(profile, NOISES[cell.evidence], rate.arrivals(60.0 * MINUTES[-1], seed), rate, seed=seed)
        server = Served(case, "learned")
        for minutes, shares in zip(MINUTES, kept, strict=True):
            server.until(60.0 * minutes)
            estimates = server.scheduler.states[PROGRAM].estimates
            learned = mean_ns(profile, rate.values[0], estimates.control, estimates.scale)
            shares.append((no_wait - learned) / (no_wait - exact))
    kept_by = dict(zip(map(str, MINUTES), map(float, np.mean(kept, axis=1)), strict=True))
    return cell._asdict() | {"gain": no_wait / exact - 1, "kept": kept_by}


def mean_ns(profile: Profile, rate: float, control: ControlTables | None, scale: float = 1.0) -> float:
    """The exact mean latency of a table of one worker; None is `no_wait`. If it does not keep up, as bad as twice
    `no_wait`."""
    rows = range(1, profile.max_batch + 1)
    every = [min(waiting, profile.max_batch) for waiting in range(129)]
    level = -1 if control is None else control.level(rate, scale)
    if control is None or level < 0:
        return optimal.evaluate(profile.batch_ns, rate, every, pad=False).mean_ns
    times = [profile.batch_ns[control.sizes[size - 1] - 1] for size in rows]
    try:
        return optimal.evaluate(times, rate, control.tables[level], pad=False).mean_ns
    except ValueError:
        return 2 * mean_ns(profile, rate, None)


def burst_cell(cell: Cell) -> Data:
    """Means after the first minute, over those of `told`."""
    profile = curves()[cell.curve]
    cases = (bursts(profile, cell.evidence, seed) for seed in range(cell.seeds))
    return cell._asdict() | over_told(cases, [(FIRST_S, float("inf"))])


def bursts(profile: Profile, traffic: str, seed: int) -> Case:
    """One worker under such traffic."""
    evidence, random = EVIDENCE["quiet"], np.random.default_rng([seed, 4])
    if traffic == "trace":
        return traced(profile, evidence, seed)
    count = round(BURSTS_S / 2)  # more than enough
    dwells = random.exponential(5.0, count) if traffic == "two rates" else np.full(count, 10.0)
    begins = np.concatenate([[0.0], dwells.cumsum()])
    begins = begins[begins < BURSTS_S]
    rates = [(LOW, HIGH)[number % 2] * profile.peak for number in range(len(begins))]
    rate = Phases(tuple(begins.tolist()), tuple(rates))
    return Case(profile, evidence, rate.arrivals(BURSTS_S, seed), rate, seed=seed)


def traced(profile: Profile, evidence: Evidence, seed: int) -> Case:
    """The trace again and again, on a device so slow that it is at its load. `told` knows the means of two seconds."""
    with TRACE.open(encoding="utf-8") as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        offsets = np.array([float(row["offset_s"]) for row in rows])
    seconds = 2 * float(np.ceil(offsets[-1] / 2))
    counts = np.histogram(offsets, np.arange(0, seconds + 1, 2))[0]
    begins = 2.0 * np.arange(REPEATED * len(counts))
    rate = Phases(tuple(begins.tolist()), tuple((np.tile(counts, REPEATED) / 2).tolist()))
    instants = np.concatenate([offsets + seconds * again for again in range(REPEATED)])
    slow = profile.scaled(PEAK / (len(offsets) / seconds / TRACE_LOAD))
    return Case(slow, evidence, np.rint(instants * 1e9).astype(np.int64), rate, seed=seed)


def slower_cell(cell: Cell) -> Data:
    """Means from five seconds after each change on, over those of `told`."""
    profile = curves()[cell.curve]
    rate = Phases((0.0,), (cell.load * peak(profile, cell.workers),))
    evidence, ends = EVIDENCE[cell.evidence], 3 * FIRST_S
    cases = (
        Case(profile, evidence, rate.arrivals(ends, seed), rate, cell.workers, SLOWER, seed)
        for seed in range(cell.seeds)
    )
    begins = SLOWER.begins[1:]
    return cell._asdict() | over_told(cases, [(begin + WINDOW_S, begin + FIRST_S) for begin in begins])


def over_told(cases: Iterable[Case], windows: Sequence[tuple[float, float]]) -> dict[str, list[float]]:
    """By policy and window: the mean over that of `told`, each the mean over the cases."""
    means: dict[str, list[list[float]]] = {how: [] for how in ("told", "exact", "no_wait", "learned")}
    for case in cases:
        for how, found in means.items():
            latency = Served(case, how).latency_ms()
            found.append([_mean(latency, case.instants, *window) for window in windows])
    told = np.mean(means["told"], axis=0)
    return {how: (np.mean(found, axis=0) / told).tolist() for how, found in means.items()}


def _mean(latency: NDArray[np.float64], instants: Instants, begin: float, end: float) -> float:
    seconds = instants / 1e9
    return float(latency[(seconds >= begin) & (seconds < end)].mean())


# sections


def cold(say: Say) -> Data:
    """a start under traffic that never pauses"""
    given = [
        Cell(curve, workers, evidence, load, SEEDS[workers])
        for workers in SEEDS for curve in curves() for evidence in EVIDENCE for load in COLD_LOADS
    ]  # fmt: skip
    return {"cells": spread(cold_cell, given, say)}


def gain(say: Say) -> Data:
    """the gain kept with much noise"""
    given = [
        Cell(curve, 1, noise, load, SEEDS[1]) for curve in curves() for noise in NOISES for load in GAIN_LOADS
    ]  # fmt: skip
    return {"cells": [cell for cell in spread(gain_cell, given, say) if cell]}


def uneven(say: Say) -> Data:
    """bursts"""
    kinds = ("two rates", "square", "trace")
    return {
        "cells": spread(burst_cell, [Cell(curve, 1, kind, 0.6, SEEDS[1]) for kind in kinds for curve in curves()], say)
    }


def slower(say: Say) -> Data:
    """a device that is slower for a minute"""
    given = [Cell(curve, workers, "spiked", SLOWER_LOAD, SEEDS[workers]) for workers in SEEDS for curve in curves()]
    return {"cells": spread(slower_cell, given, say)}


SECTIONS = {"cold": cold, "gain": gain, "bursts": uneven, "slower": slower}


# the page


class Target(NamedTuple):
    """`key`: of a cell's figures. `index`: into a list or an object that it is."""

    section: str
    name: str
    key: str
    limit: float
    index: Any = None

    def of(self, cell: Data) -> float:
        value = cell[self.key]
        return float(value if self.index is None else value[self.index])

    def met(self, cell: Data) -> bool:
        return self.of(cell) >= self.limit if self.key == "kept" else self.of(cell) <= self.limit

    def worst(self, cells: Sequence[Data]) -> Data:
        return (min if self.key == "kept" else max)(cells, key=self.of)

    def text(self, cell: Data) -> str:
        return f"{self.of(cell):.0%}" if self.key == "kept" else f"{self.of(cell):.3f}"


TARGETS = (
    Target("cold", "first minute", "first", 1.15),
    Target("cold", "then", "after", 1.03),
    Target("cold", "worst 5 s over `no_wait`", "five", 1.03),
    Target("gain", "after 1 min", "kept", 0.8, "1"),
    Target("gain", "after 5 min", "kept", 0.8, "5"),
    Target("bursts", "over `told`", "learned", 1.10, 0),
    Target("slower", "slow", "learned", 1.05, 0),
    Target("slower", "back", "learned", 1.05, 1),
)


def where(cell: Data) -> str:
    several = ", two workers" if cell["workers"] > 1 else ""
    return f"{cell['curve']}, {cell['evidence']}, {cell['load']:g}{several}"


def reached(target: Target, cells: Sequence[Data]) -> str:
    """How many reach the target, and the worst."""
    return f"{sum(map(target.met, cells))} of {len(cells)}, {target.text(target.worst(cells))}"


def missed(data: Data) -> list[str]:
    found = []
    for target in TARGETS:
        cells = data[target.section]["cells"]
        if not all(map(target.met, cells)):
            worst = target.worst(cells)
            found.append(f"{target.section}, {target.name}: {reached(target, cells)} ({where(worst)})")
    return found


PAGE = Page("learned", __name__, missed)
EXPERIMENT = in_sections(PAGE, "experiments.policies.learned", __doc__, SECTIONS)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
