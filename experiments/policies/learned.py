"""What it costs that batch times are learned while serving, simulated: `python -m experiments.policies.learned`.

Each server begins with a warm-up that ran every size once, never pauses, and learns from the batches that it serves. It
is compared on the same arrivals and noise with `exact`, which has the tables of the true curve, `told`, which is told
the true rate and speed as well, and `no_wait`. Writes docs/bench/learned.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from app.scheduler.estimates.profile import Profile
from app.scheduler.optimal.tables import ControlTables
from experiments.common import plain_queue
from experiments.common.processes import spread
from experiments.policies.learning import STEADY, Case, Evidence, Phases, Served, curves, exact_tables
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import DOCS
from planner.node import PROGRAM

SEEDS = 2  # runs of a case with one worker; with two, whose tables take seconds, half as many
#: Times as many for starts, within half a minute of which single long batches move means by a tenth, and for noise.
_MORE = 4
COLD_S, FIRST_S, WINDOW_S = 90.0, 60.0, 5.0
MINUTE_S = 60.0
LEAST_GAIN = 0.02  # of the exact table over `no_wait`, below which there is nothing to lose
LOW, HIGH, BURSTS_S = 0.3, 0.9, 300.0  # the loads of bursts
TRACE, TRACE_LOAD, REPEATED = DOCS / "azure-conversations.csv", 0.6, 5
SLOWER = Phases((0.0, 60.0, 120.0), (1.0, 1.5, 1.0))
QUIET = Evidence(0.03)
#: Batches three times as long among the calls, sizes four times as long in the warm-up.
SPIKED = Evidence(0.05, spikes=(0.01, 3.0), warm=(0.1, 4.0))
EVIDENCE = {"quiet": QUIET, "spiked": SPIKED, "loud": Evidence(0.15), "15 %": Evidence(0.15), "30 %": Evidence(0.30)}


class Cell(NamedTuple):
    """`kind`: of evidence, or of bursts."""

    curve: str
    workers: int
    kind: str
    load: float
    seeds: int

    @property
    def profile(self) -> Profile:
        return curves()[self.curve]

    def case(self, seconds: float, seed: int, slow: Phases = STEADY) -> Case:
        """Steady traffic."""
        rate = Phases((0.0,), (self.load * exact_tables(self.profile, self.workers).peak,))
        evidence = EVIDENCE[self.kind]
        return Case(self.profile, evidence, rate.arrivals(seconds, seed), rate, self.workers, slow, seed)


Windows = Sequence[tuple[float, float]]  # from, to, in seconds


def means(cases: Iterable[Case], names: Iterable[str], windows: Windows) -> dict[str, NDArray[np.float64]]:
    """By way of serving: the mean latency of each window, the mean over the cases."""
    found: dict[str, list[list[float]]] = {name: [] for name in names}
    for case in cases:
        seconds = case.instants / 1e9
        within = [(seconds >= begin) & (seconds < end) for begin, end in windows]
        for name, each in found.items():
            latency = Served(case, name).latency_ms()
            each.append([float(latency[one].mean()) for one in within])
    return {name: np.mean(each, axis=0) for name, each in found.items()}


def cold(cell: Cell) -> Data:
    """Means over those of `exact` in the first minute and after it; the worst five seconds over those of `no_wait`."""
    windows = [(begin, begin + WINDOW_S) for begin in np.arange(0, COLD_S, WINDOW_S)]
    cases = (cell.case(COLD_S, seed) for seed in range(cell.seeds))
    by = means(cases, ("exact", "no_wait", "learned"), [(0, FIRST_S), (FIRST_S, COLD_S), *windows])
    first, after, *fives = (by["learned"] / np.r_[by["exact"][:2], by["no_wait"][2:]]).tolist()
    return {
        "first": first,
        "after": after,
        "five": max(fives),
        "exact": float(max(by["exact"][2:] / by["no_wait"][2:])),
    }


def gain(cell: Cell) -> Data:
    """The share lost of the gain of the exact table over `no_wait`, after one minute and five; {} if that is small.

    The table in use is evaluated on the true curve.
    """
    profile, lost = cell.profile, []
    for seed in range(cell.seeds):
        case = cell.case(5 * MINUTE_S, seed)
        every, exact = (mean_ns(case, one) for one in (None, exact_tables(profile, 1)))
        if every < (1 + LEAST_GAIN) * exact:
            return {}
        server = Served(case, "learned")
        for minutes in (1, 5):
            server.until(minutes * MINUTE_S)
            estimates = server.scheduler.states[PROGRAM].estimates
            lost.append((mean_ns(case, estimates.control, estimates.scale) - exact) / (every - exact))
    return {"gain": every / exact - 1, "lost_1": float(np.mean(lost[::2])), "lost_5": float(np.mean(lost[1::2]))}


def mean_ns(case: Case, control: ControlTables | None, scale: float = 1.0) -> float:
    """The mean latency of the table used on a device that seems `scale` times as slow; without one that of `no_wait`.

    A table that does not keep up counts as twice that.
    """
    rate, times = case.rate.at(0), case.profile.batch_ns
    level = -1 if control is None else control.level(rate, scale)
    if control is None or level < 0:
        return plain_queue.mean_ns(times, rate, lambda waiting: min(waiting, len(times)))
    times = tuple(times[size - 1] for size in control.sizes)
    if control.tail * 1e9 <= rate * times[control.tail - 1]:
        return 2 * mean_ns(case, None)
    return plain_queue.mean_ns(times, rate, lambda waiting: control.serve(level, waiting))


def bursts(cell: Cell) -> Data:
    """Means after the first minute, over those of `told`."""
    cases = (burst(cell.profile, cell.kind, seed) for seed in range(cell.seeds))
    by = means(cases, ("told", "exact", "learned"), [(FIRST_S, float("inf"))])
    return {"mean": float(by["learned"][0] / by["told"][0]), "exact": float(by["exact"][0] / by["told"][0])}


def burst(profile: Profile, kind: str, seed: int) -> Case:
    """One worker under such traffic."""
    if kind == "trace":
        return traced(profile, seed)
    count = round(BURSTS_S / 2)  # more than enough
    dwells = np.full(count, 10.0) if kind == "square" else np.random.default_rng([seed, 4]).exponential(5.0, count)
    begins = np.r_[0.0, dwells.cumsum()]
    begins = begins[begins < BURSTS_S]
    rates = np.resize([LOW * profile.peak, HIGH * profile.peak], len(begins))
    rate = Phases(tuple(begins.tolist()), tuple(rates.tolist()))
    return Case(profile, QUIET, rate.arrivals(BURSTS_S, seed), rate, seed=seed)


def traced(profile: Profile, seed: int) -> Case:
    """The trace again and again, on a device so slow that it is at its load. `told` knows the means of two seconds."""
    offsets = np.loadtxt(TRACE, delimiter=",", usecols=0)
    seconds = 2 * float(np.ceil(offsets[-1] / 2))
    counts = np.histogram(offsets, np.arange(0, seconds + 1, 2))[0]
    rates = np.tile(counts / 2, REPEATED)
    rate = Phases(tuple(2.0 * number for number in range(len(rates))), tuple(rates.tolist()))
    instants = np.concatenate([offsets + seconds * again for again in range(REPEATED)])
    slow = profile.scaled(profile.peak * TRACE_LOAD * seconds / len(offsets))
    return Case(slow, QUIET, np.rint(instants * 1e9).astype(np.int64), rate, seed=seed)


def slower(cell: Cell) -> Data:
    """Means from five seconds after each change on, over those of `told`."""
    _, change, back = SLOWER.begins
    ends = 2 * back - change
    cases = (cell.case(ends, seed, SLOWER) for seed in range(cell.seeds))
    by = means(cases, ("told", "learned"), [(change + WINDOW_S, back), (back + WINDOW_S, ends)])
    slow, after = (by["learned"] / by["told"]).tolist()
    return {"slow": slow, "back": after}


class Section(NamedTuple):
    """`targets`: by figure, its name and the most that it may be. `more`: times as many seeds."""

    title: str
    work: Callable[[Cell], Data]
    workers: Sequence[int]
    kinds: Sequence[str]
    loads: Sequence[float]
    targets: dict[str, tuple[str, float]]
    more: int = 1


_COLD = {"first": ("first minute", 1.15), "after": ("then", 1.03), "five": ("worst 5 s over `no_wait`", 1.03)}
_NOISY = ("15 %", "30 %")
_COLD_KINDS, _COLD_LOADS = ("quiet", "spiked", "loud"), (0.3, 0.6, 0.85)
SECTIONS = {
    "cold": Section("A cold start", cold, (1,), _COLD_KINDS, _COLD_LOADS, _COLD, _MORE),
    "two": Section("With two workers", cold, (2,), ("spiked",), _COLD_LOADS, _COLD, _MORE),
    "near": Section(
        "Near the peak", cold, (1,), _NOISY, (0.95,), {key: _COLD[key] for key in ("first", "after")}, _MORE
    ),
    "gain": Section(
        "Gain lost", gain, (1,), _NOISY, (0.5, 0.7, 0.9),
        {"lost_1": ("after 1 min", 0.2), "lost_5": ("after 5 min", 0.2)}, _MORE,
    ),
    "bursts": Section("Bursts", bursts, (1,), ("two rates", "square", "trace"), (0.6,), {"mean": ("mean", 1.10)}),
    "slower": Section(
        "A slower device", slower, (1, 2), ("spiked",), (0.5,), {"slow": ("slow", 1.05), "back": ("back", 1.05)}
    ),
}  # fmt: skip


def worked(given: tuple[str, Cell]) -> Data:
    name, cell = given
    found = SECTIONS[name].work(cell)
    return {**cell._asdict(), **found} if found else {}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=SEEDS, help=f"runs of each case with one worker [{SEEDS}]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    given = [
        (name, Cell(curve, workers, kind, load, max(1, chosen.seeds * one.more // workers)))
        for name, one in SECTIONS.items()
        for workers in one.workers for curve in curves() for kind in one.kinds for load in one.loads
    ]  # fmt: skip
    data: Data = {"seeds": chosen.seeds, **{name: [] for name in SECTIONS}}
    for (name, _), found in zip(given, spread(worked, given, run.say), strict=True):
        data[name] += [found] if found else []
    return data


def reached(cells: Sequence[Data], key: str, limit: float) -> str:
    """How many of them reach a target, and the worst."""
    return f"{sum(cell[key] <= limit for cell in cells)} of {len(cells)}, {max(cell[key] for cell in cells):.3f}"


def missed(data: Data) -> list[str]:
    found = []
    for section, one in SECTIONS.items():
        for key, (name, limit) in one.targets.items():
            worst = max(data[section], key=lambda cell: float(cell[key]))
            if worst[key] > limit:
                where = f"{worst['curve']}, {worst['kind']}, {worst['load']:g}, workers: {worst['workers']}"
                found.append(f"{one.title}, {name}: {reached(data[section], key, limit)} ({where}); at most {limit:g}")
    return found


PAGE = Page("learned", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.policies.learned", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
