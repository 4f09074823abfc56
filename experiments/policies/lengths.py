"""Simulates which rows go together by length: `python -m experiments.policies.lengths`. Writes docs/bench/lengths.md.

Rows of different lengths on devices whose batch times depend on the longest row. The policy `adaptive` fills batches by
count (`reorder = false`) or picks rows by length; beside them `no_wait`, and buckets of similar lengths. A closed loop
of 64 clients, then Poisson arrivals. Yardsticks: under saturation batches of one size with the least padding, for a few
rows that all wait the optimum over all orders.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from app.scheduler.estimates.lengths import time_at
from app.scheduler.estimates.profile import ModelProfile, parse
from app.scheduler.types import Call, Klass, Outcome, Row
from experiments.common.networks import BUCKETS, NETWORKS, RTE
from experiments.common.processes import spread
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import DOCS
from planner.drawn_lengths import Lengths
from planner.fleet import Setup, run
from planner.node import PROGRAM
from planner.simulator import Simulator
from planner.tally import Tally

GLUE = "lognormal:14:0.75:4:128"
CLIENTS = 64
LOADS = (0.1, 0.3, 0.6, 0.9, 1.2)  # of what the best way by count serves in a closed loop
SIZES = (1, 2, 4, 6, 8, 12, 16, 24, 32)
FEW = (2, 4, 6, 8)  # rows of the cases whose optimum is computed
CASES = 40
LOST_MS = 2_000.0  # a mean beyond it: more comes than is served
_TICK_NS = 1_000_000_000


@dataclass(frozen=True)
class Device:
    """A profile and the lengths that it meets. `buckets`: for the way that clusters lengths."""

    name: str
    profile: ModelProfile
    lengths: str
    buckets: tuple[int, ...]


def linear(fixed_ms: float, token_ms: float) -> ModelProfile:
    """b rows, the longest of L tokens, take `fixed_ms` + `token_ms` x b x L."""
    times = {
        str(length): {str(size): fixed_ms + token_ms * size * length for size in (1, 32)} for length in (1, 20, 128)
    }
    return parse({"max_batch": 32, "batch_ms": times["20"], "length_ms": times})


def devices() -> dict[str, Device]:
    measured = parse(json.loads((DOCS / "profiles" / "encoder-lengths.json").read_text()))
    buckets = (8, 16, 24, 32, 48, 64)
    found = [
        Device("encoder", measured, GLUE, buckets),
        Device("3.8 + 0.15 b L", linear(3.8, 0.15), GLUE, buckets),
        Device("20 + 0.02 b L", linear(20, 0.02), GLUE, buckets),
    ]
    for network in NETWORKS:
        if network.lengths:
            sliced = network.profile()
            found.append(Device(network.name, replace(sliced, stages=()), RTE, BUCKETS))
            found.append(Device(f"{network.name}, 2 stages", sliced, RTE, BUCKETS))
    return {device.name: device for device in found}


def ways(device: Device) -> dict[str, Setup]:
    base = Setup(device.profile, 1.0, max_queue=1 << 30, lengths=device.lengths, max_delay_ns=0)
    return {
        "all that waits": replace(base, policy="no_wait"),
        "by count": replace(base, reorder=False),
        "buckets": replace(base, policy="dva_input", length_buckets=device.buckets),
        "adaptive, buckets": replace(base, reorder=False, length_buckets=device.buckets),
        "by length": base,
    }


def closed(setup: Setup, requests: int) -> float:
    """Rows per second of `CLIENTS` that each send a request as soon as the last one is answered."""
    setup = setup.solved()
    scheduler, parts = setup.node(0).scheduler, setup.profile.parts
    lengths = _endless(setup)
    now = answered = 0
    tick = _TICK_NS

    def send(first: int, count: int) -> None:
        for number in range(first, first + count):
            scheduler.submit(Call(number, PROGRAM, [Row(length=next(lengths))], Klass.REALTIME, 0, now, None), now)

    send(0, CLIENTS)
    while answered < requests:
        step = scheduler.step(now)
        send(CLIENTS + answered, len(step.done))
        answered += len(step.done)
        (unit,) = step.start or scheduler.step(now).start
        now += round(parts[unit.stage].time(unit.size, unit.length))
        while tick < now:
            scheduler.tick(tick)
            tick += _TICK_NS
        scheduler.finished(Outcome(unit.id, None, unit.predicted), now)
    return answered / now * 1e9


def _endless(setup: Setup) -> Iterator[int]:
    drawn = Lengths(setup.lengths, [setup.seed, 3])
    while True:
        yield from drawn.draw(1024).tolist()


def best_windows(device: Device, batches: int) -> dict[str, float]:
    """By size: rows per second if of 64 rows that wait those of one size with the least padding go, oldest or not."""
    found = {}
    for size in SIZES:
        lengths = _endless(Setup(device.profile, 1.0, lengths=device.lengths))
        waiting = sorted(next(lengths) for _ in range(CLIENTS))
        passed = 0.0
        for _ in range(batches):
            places = range(len(waiting) - size + 1)
            first = min(places, key=lambda at: size * waiting[at + size - 1] - sum(waiting[at : at + size]))
            passed += time_at(device.profile.by_length, size, waiting[first + size - 1])
            waiting[first : first + size] = [next(lengths) for _ in range(size)]
            waiting.sort()
        found[str(size)] = size * batches / passed * 1e9
    return found


def optimum(lengths: Sequence[int], profile: ModelProfile) -> float:
    """The least mean latency of rows that all wait, in ns: over all orders of all batches."""

    @cache
    def least(left: int) -> float:
        """Rows x ns until all rows of this set of bits have ended."""
        if not left:
            return 0.0
        best, chosen = float("inf"), left
        while chosen:
            rows = [length for place, length in enumerate(lengths) if chosen >> place & 1]
            time = time_at(profile.by_length, len(rows), max(rows))
            best = min(best, left.bit_count() * time + least(left & ~chosen))
            chosen = (chosen - 1) & left
        return best

    return least((1 << len(lengths)) - 1) / len(lengths)


def drained(setup: Setup, lengths: Sequence[int]) -> float:
    """The mean latency of rows that all wait and of no others, in ns."""
    tally = Tally()
    simulator = Simulator([setup.node(0)], tally)
    simulator.feed([0] * len(lengths), lengths)
    simulator.drain()
    return tally.total_ns / len(lengths)


def few(device: Device) -> list[dict[str, float]]:
    """A few rows that all wait: mean latencies over that of the optimum, by number of rows."""
    lengths = _endless(Setup(device.profile, 1.0, lengths=device.lengths))
    setups = {name: setup.solved() for name, setup in ways(device).items() if name in ("by count", "by length")}
    found = []
    for rows in FEW:
        cases = [[next(lengths) for _ in range(rows)] for _ in range(CASES)]
        best = [optimum(case, device.profile) for case in cases]
        ratios = {
            name: sum(drained(setup, case) / least for case, least in zip(cases, best, strict=True)) / CASES
            for name, setup in setups.items()
        }
        found.append({"rows": rows, **ratios})
    return found


def study(given: tuple[str, int, int]) -> dict[str, Any]:
    """One device: the closed loop, the open loops, the yardsticks."""
    name, requests, seeds = given
    device = devices()[name]
    setups = ways(device)
    closed_loop = {way: closed(setup, requests // 5) for way, setup in setups.items() if way != "buckets"}
    peak = max(closed_loop["by count"], closed_loop["all that waits"])
    loads: dict[str, Any] = {}
    for load in LOADS:
        loads[str(load)] = {way: _cell(setup, load * peak, requests, seeds) for way, setup in setups.items()}
    found = {"device": name, "lengths": device.lengths, "closed": closed_loop, "peak": peak, "loads": loads}
    if not device.profile.stages:
        found |= {"windows": best_windows(device, 400), "few": few(device)}
    return found


def _cell(setup: Setup, rate: float, requests: int, seeds: int) -> dict[str, float] | None:
    """Means over seeds; None where more comes than is served."""
    cells = []
    for seed in range(seeds):
        cell = run(replace(setup, rate=rate, requests=requests, seed=seed))
        if cell["mean_ms"] > LOST_MS:
            return None
        cells.append(cell)
    return {figure: sum(cell[figure] for cell in cells) / seeds for figure in ("mean_ms", "p99_ms", "mean_batch")}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=6_000, help="requests of each run [6000]")
    parser.add_argument("--seeds", type=int, default=2, help="runs of each cell [2]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    studies = spread(study, [(name, chosen.requests, chosen.seeds) for name in devices()], run.say)
    settings = {
        "requests": chosen.requests, "seeds": chosen.seeds, "clients": CLIENTS, "loads": list(LOADS), "cases": CASES,
    }  # fmt: skip
    return {"settings": settings, "studies": studies}


CLOSED = 1.8  # of the rows per second by count, at least
NEAR = 1.01  # of the mean by count, at most, whatever the load
HALF = 0.5  # of the mean by count at 90 %, at most
#: For which the targets of more rows and lower latencies are meant.
TARGET = "encoder"


def gain(found: Data) -> float:
    """Rows a second by length over those by count, in the closed loop."""
    return float(found["closed"]["by length"] / found["closed"]["by count"])


def ratio(cells: Data, figure: str = "mean_ms") -> float | None:
    """By length over by count; None where either is overloaded."""
    ours, count = cells["by length"], cells["by count"]
    return None if ours is None or count is None else ours[figure] / count[figure]


def missed(data: Data) -> list[str]:
    lines = []
    for found in data["studies"]:
        name = found["device"]
        if name == TARGET and gain(found) < CLOSED:
            lines.append(f"{name}, closed loop: {gain(found):.2f} x")
        for load, cells in found["loads"].items():
            mean, p99 = ratio(cells), ratio(cells, "p99_ms")
            if mean is None or p99 is None:
                continue
            if mean > NEAR:
                lines.append(f"{name}, load {load}: mean {mean:.3f} x")
            if name == TARGET and float(load) < 1 and max(mean, p99) >= 1:
                lines.append(f"{name}, load {load}: mean {mean:.3f} x, 99 % {p99:.3f} x, not lower")
            if name == TARGET and load == "0.9" and mean > HALF:
                lines.append(f"{name}, load {load}: mean {mean:.2f} x, not {HALF:g} x")
    return lines


def best_window(found: Data) -> str:
    known = found.get("windows", {})
    best = max(known, key=lambda size: known[size], default=None)
    return "" if best is None else f"{known[best]:.0f} (size {best})"


PAGE = Page("lengths", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.policies.lengths", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
