"""Simulates DVABatch's and Late Batching's experiments: `python -m loadtest.papers.stages`.

DVABatch: six networks in stages on a modelled GPU, mean and 99 % latency at 1/4, 3/5 and 9/10 of the peak, against
batches of the whole model without a window (ZeroBatch) and with one tuned for the peak (DelayBatch). Late Batching: an
LSTM cell against padded buckets on the same device. Writes docs/bench/stages.md, .json and plots.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from typing import Any

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import AT_ONCE
from app.sim.fleet import Setup, run
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.networks import BUCKETS, MAX_BATCH, NETWORKS, RTE, Network
from loadtest.common.processes import spread

from . import stages_page

QOS_MS = 200.0
LOADS = {"low": 0.25, "medium": 0.6, "high": 0.9}
DELAYS = (2.0, 5.0, 10.0, 20.0, 50.0)  # ms, of DelayBatch
AHEAD = 2  # batches that Triton hands over before the first of them ends
_QUEUE = 1 << 30  # nothing is refused
_STEPS = 7  # of the search for a peak, each halving what is left


def systems(network: Network, delay_ms: float) -> dict[str, Setup]:
    """The compared servers by name, at no rate yet."""
    sliced = network.profile()
    whole = replace(sliced, stages=())
    base = Setup(whole, 1.0, max_queue=_QUEUE, lengths=network.lengths, max_delay_ns=0)
    buckets = BUCKETS if network.lengths else ()
    return {
        "ZeroBatch": replace(base, policy="no_wait", push_depth=AHEAD, push_ahead_ns=AT_ONCE),
        "DelayBatch": replace(
            base, policy="window", max_delay_ns=round(delay_ms * 1e6), push_depth=AHEAD, push_ahead_ns=AT_ONCE
        ),
        "no_wait": replace(base, policy="no_wait"),
        "DVABatch": replace(base, profile=sliced, policy=network.policy, length_buckets=buckets),
        "adaptive": replace(base, profile=sliced, policy="adaptive"),
        "adaptive, whole": replace(base, policy="adaptive"),
    }


def figures(setup: Setup, rate: float, requests: int, seed: int = 0) -> dict[str, float]:
    cell = run(replace(setup, rate=rate, requests=requests, seed=seed))
    return {name: cell[name] for name in ("mean_ms", "p50_ms", "p99_ms", "throughput")}


def peak(setup: Setup, requests: int) -> float:
    """The largest rate at which 99 % of the requests keep the QoS."""
    low, high = 0.0, 1.5 * setup.peak
    for _ in range(_STEPS):
        middle = (low + high) / 2
        keeps = figures(setup, middle, requests)["p99_ms"] <= QOS_MS
        low, high = (middle, high) if keeps else (low, middle)
    return low


def study(given: tuple[Network, int]) -> dict[str, Any]:
    """One network: every system at three loads, and the peaks."""
    network, requests = given
    peaks = {delay: peak(systems(network, delay)["DelayBatch"], requests) for delay in DELAYS}
    delay = max(peaks, key=lambda one: peaks[one])  # the shortest of equals
    found: dict[str, Any] = {"network": asdict(network), "delay_ms": delay, "peaks": {}, "loads": {}}
    for name, setup in systems(network, delay).items():
        found["peaks"][name] = peaks[delay] if name == "DelayBatch" else peak(setup, requests)
        found["loads"][name] = {
            load: figures(setup, share * peaks[delay], requests, 1) for load, share in LOADS.items()
        }
    return found


#: What is assumed of all networks, changed.
DOUBTS: dict[str, dict[str, float]] = {
    "as assumed": {}, "half as many rows fill the GPU": {"fill": 0.5}, "twice as many": {"fill": 2.0},
    "launches cost nothing": {"launch": 0.0}, "launches cost twice as much": {"launch": 2.0},
    "half as many stages": {"stages": 0.5}, "twice as many stages, launches in proportion": {"stages": 2.0},
}  # fmt: skip


def changed(network: Network, change: dict[str, float]) -> Network:
    stages = change.get("stages", 1.0)
    fills = network.fills
    if stages != 1:
        count = round(len(fills) * stages)
        fills = tuple(fills[at * len(fills) // count] for at in range(count))
    return replace(
        network,
        fills=tuple(max(1.0, fill * change.get("fill", 1.0)) for fill in fills),
        launch_ms=network.launch_ms * change.get("launch", 1.0) / stages,
    )


def doubt(given: tuple[str, int]) -> dict[str, Any]:
    """Mean latencies of ZeroBatch and DVABatch with another assumption, for all networks at all loads."""
    name, requests = given
    found: dict[str, Any] = {"doubt": name, "reductions": {}}
    for load, share in LOADS.items():
        gains = []
        for known in NETWORKS:
            compared = systems(changed(known, DOUBTS[name]), 5.0)
            rate = share * compared["ZeroBatch"].peak * 0.9
            zero, dva = (figures(compared[one], rate, requests)["mean_ms"] for one in ("ZeroBatch", "DVABatch"))
            gains.append(1 - dva / zero)
        found["reductions"][load] = gains
    return found


# Late Batching

CELL_MS = 0.2
CELL_FILL = 64
CELL_BATCH = 512
WMT = "lognormal:22:0.65:1:330"
WIDTHS = (5, 10, 20, 40, 330)  # of the baseline's buckets
DATASETS = {"fixed 20": "fixed:20", "WMT-like": WMT}
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


def cell() -> ModelProfile:
    sizes = range(1, CELL_BATCH + 1)
    step = ModelProfile(tuple(round(CELL_MS * max(1.0, size / CELL_FILL) * 1e6) for size in sizes), cell=True)
    return replace(step, cell=False, model="lstm", stages=(step,))


def padded() -> ModelProfile:
    """The same cell, run for the longest row of each batch."""
    step = cell().batch_ns
    return ModelProfile(step, by_length=tuple((length, tuple(length * time for time in step)) for length in (1, 330)))


def cells(given: tuple[str, int]) -> dict[str, Any]:
    """One data set: the best bucket width, what both serve at most, and latencies at shares of the baseline's most."""
    name, requests = given
    late = Setup(cell(), 1.0, "late", max_queue=_QUEUE, lengths=DATASETS[name])
    buckets = {
        width: replace(late, profile=padded(), policy="no_wait", length_buckets=tuple(range(width, 330, width)))
        for width in (WIDTHS if name != "fixed 20" else WIDTHS[-1:])
    }
    flood = 3 * late.peak
    most = {width: figures(setup, flood, requests)["throughput"] for width, setup in buckets.items()}
    width = max(most, key=lambda one: most[one])
    found: dict[str, Any] = {
        "dataset": name, "width": width, "widths": {str(one): rate for one, rate in most.items()},
        "most": {"buckets": most[width], "late": figures(late, flood, requests)["throughput"]}, "shares": {},
    }  # fmt: skip
    for share in SHARES:
        rate = share * most[width]
        found["shares"][str(share)] = {
            "buckets": figures(buckets[width], rate, requests), "late": figures(late, rate, requests),
        }  # fmt: skip
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=8_000, help="requests of each run [8000]")
    parser.add_argument("--processes", type=int, default=2, help="processes [2]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    settings = {
        "max_batch": MAX_BATCH, "qos_ms": QOS_MS, "loads": LOADS, "delays_ms": list(DELAYS), "rte": RTE,
        "buckets": list(BUCKETS), "wmt": WMT, "cell_ms": CELL_MS, "cell_fill": CELL_FILL, "cell_batch": CELL_BATCH,
        "ahead": AHEAD, "requests": chosen.requests,
    }  # fmt: skip
    data: Data = {"settings": settings}
    for key, work, given in (
        ("studies", study, [(network, chosen.requests) for network in NETWORKS]),
        ("doubts", doubt, [(name, chosen.requests // 4) for name in DOUBTS]),
        ("cells", cells, [(name, chosen.requests) for name in DATASETS]),
    ):
        data[key] = []
        for found in spread(work, given, chosen.processes):
            data[key].append(found)
            run.say(f"{key}: {len(data[key])} of {len(given)}")
    return data


EXPERIMENT = Experiment("stages", "loadtest.papers.stages", __doc__, measure, stages_page.write, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
