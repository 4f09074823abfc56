"""Runs the servers of DVABatch's experiments: on one device that runs one unit at a time, or on a GPU with room."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from app.scheduler.types import AT_ONCE
from experiments.common.networks import BUCKETS, MAX_BATCH, Network
from experiments.papers.stages_gpu import StagesGpu, profile
from planner.fleet import Setup, run
from planner.simulated_device import SimulatedDevice
from planner.simulator import Simulator
from planner.tally import Tally

QOS_MS = 200.0
AHEAD = 2  # batches that Triton hands over before the first of them ends
PAIRS = 2  # buffer pairs of DVABatch, and so many batches at once
QUEUE = 1 << 30  # nothing is refused
COMPLETE_WAIT = 0.1  # T_comp_wait over T(1), unless it is varied
_LEAST_S = 2.5  # of a run: a queue that grows must have the time to show
_STEPS = 6  # of the search for a peak, each halving what is left


@dataclass(frozen=True)
class System:
    """A compared server. `gpu`: the network whose stages share a GPU; None: one unit at a time."""

    setup: Setup
    gpu: Network | None = None


def systems(network: Network, delay_ms: float) -> dict[str, System]:
    """The compared servers by name, at no rate yet."""
    sliced = profile(network)
    whole = replace(sliced, stages=())
    base = Setup(
        whole, 1.0, max_queue=QUEUE, lengths=network.lengths, max_delay_ns=0, complete_wait=COMPLETE_WAIT
    )  # fmt: skip
    buckets = BUCKETS if network.lengths else ()
    triton = replace(base, policy="no_wait", push_depth=AHEAD, push_ahead_ns=AT_ONCE)
    stages = replace(base, profile=sliced)
    clusters = replace(stages, policy=network.policy, length_buckets=buckets)
    executors = replace(clusters, device="shared", workers=(MAX_BATCH,) * PAIRS)
    return {
        "ZeroBatch": System(triton),
        "DelayBatch": System(replace(triton, policy="window", max_delay_ns=round(delay_ms * 1e6))),
        "no_wait": System(replace(base, policy="no_wait")),
        "DVABatch": System(executors, network),
        "DVABatch, one at a time": System(clusters),
        "split alone": System(replace(executors, policy="dva_operator"), network),
        "adaptive": System(replace(stages, policy="adaptive")),
        "adaptive, whole": System(replace(base, policy="adaptive")),
    }


def figures(
    system: System, rate: float, requests: int, seed: int = 0, least_s: float | None = None
) -> dict[str, float]:
    """Mean and percentiles in ms, and requests per second, of a run at this rate of `least_s` at least."""
    requests = max(requests, round((_LEAST_S if least_s is None else least_s) * rate))
    setup = replace(system.setup, rate=rate, requests=requests, seed=seed)
    if system.gpu is None:
        cell = run(setup)
        return {name: cell[name] for name in ("mean_ms", "p50_ms", "p99_ms", "throughput")}
    node, tally = setup.solved().node(0), Tally()
    node.device = cast("SimulatedDevice", StagesGpu(system.gpu))
    instants = np.concatenate(list(setup.instants()))
    drawn = setup.drawn_lengths()
    simulator = Simulator([node], tally)
    simulator.feed(instants.tolist(), *(one.draw(len(instants)).tolist() for one in drawn))
    simulator.drain()
    return {
        "mean_ms": tally.total_ns / tally.completed / 1e6, "p50_ms": (tally.percentile(0.5) or 0) / 1e6,
        "p99_ms": (tally.percentile(0.99) or 0) / 1e6, "throughput": tally.completed / tally.end_ns * 1e9,
    }  # fmt: skip


def peak(system: System, requests: int) -> float:
    """The largest rate at which 99 % of the requests keep the QoS."""
    low, high = 0.0, 1.5 * system.setup.peak
    for _ in range(_STEPS):
        middle = (low + high) / 2
        keeps = figures(system, middle, requests)["p99_ms"] <= QOS_MS
        low, high = (middle, high) if keeps else (low, middle)
    return low
