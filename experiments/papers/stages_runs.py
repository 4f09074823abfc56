"""Runs the servers of DVABatch's experiments: on one device that runs one unit at a time, or on a GPU with room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import cast

import numpy as np
from numpy.typing import NDArray

from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import AT_ONCE, DeviceSpec
from experiments.common.networks import BUCKETS, MAX_BATCH, Network
from experiments.common.simulated import Recorder, stepped
from experiments.papers.stages_gpu import StagesGpu, profile
from planner.fleet import Setup, run
from planner.node import Node
from planner.simulated_device import SimulatedDevice
from planner.simulator import Simulator
from planner.tally import Tally

QOS_MS = 200.0
AHEAD = 2  # batches that Triton hands over before the first of them ends
PAIRS = 2  # buffer pairs of DVABatch, and so many batches at once
QUEUE = 1 << 30  # nothing is refused
COMPLETE_WAIT = 0.1  # T_comp_wait over T(1), unless it is varied
STEPPING = (66.0, 4000.0, 15, 2000)  # requests per second at first and at last, steps, requests of each
_LEAST_S = 2.5  # of a run: a queue that grows must have the time to show
_STEPS = 6  # of the search for a peak, each halving what is left


@dataclass(frozen=True)
class System:
    """A compared server. `gpu`: the network whose stages share a GPU; None: one unit at a time."""

    setup: Setup
    gpu: Network | None = None


def systems(network: Network, delay_ms: float, pairs: int = PAIRS) -> dict[str, System]:
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
    executors = replace(clusters, device="shared", workers=(MAX_BATCH,) * pairs)
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
    instants = np.concatenate(list(setup.instants()))
    tally, _ = simulated(system, setup, instants)
    return {
        "mean_ms": tally.total_ns / tally.completed / 1e6, "p50_ms": (tally.percentile(0.5) or 0) / 1e6,
        "p99_ms": (tally.percentile(0.99) or 0) / 1e6, "throughput": tally.completed / tally.end_ns * 1e9,
    }  # fmt: skip


def simulated(
    system: System, setup: Setup, instants: NDArray[np.int64], scheduler: Callable[[DeviceSpec], Scheduler] = Scheduler
) -> tuple[Tally, Node]:
    """A run of these arrivals on the GPU, or on the setup's own device."""
    tally = Tally()
    node = setup.solved().node(0, scheduler)
    if system.gpu is not None:
        node.device = cast("SimulatedDevice", StagesGpu(system.gpu))
    drawn = setup.drawn_lengths()
    simulator = Simulator([node], tally)
    simulator.feed(instants.tolist(), *(one.draw(len(instants)).tolist() for one in drawn))
    simulator.drain()
    return tally, node


def case3() -> list[dict[str, float | bool]]:
    """The paper's third example: a row at 0 and three at 5 T, four stages of T, a window of 4 T; the mean in T."""
    millisecond = 1_000_000  # is T
    stage = ModelProfile((millisecond,) * 4)
    setup = Setup(ModelProfile((4 * millisecond,) * 4, stages=(stage,) * 4), 1.0, "dva_load", max_delay_ns=4_000_000)
    found: list[dict[str, float | bool]] = []
    for wait, one_step in product((1.0, 0.3, 0.25), (True, False)):
        tally = Tally()
        simulator = Simulator([replace(setup, complete_wait=wait).node(0)], tally, one_step=one_step)
        simulator.feed([0, *[5 * millisecond] * 3])
        simulator.drain()
        mean = tally.total_ns / tally.completed / millisecond
        found.append({"complete_wait": wait, "one_step": one_step, "mean_t": mean})
    return found


def stepping(system: System, seed: int = 0) -> list[dict[str, float]]:
    """The paper's stepping load, in one run: rate, mean and 99 % latency of each step."""
    first, last, count, requests = STEPPING
    rates = np.linspace(first, last, count).tolist()
    setup = replace(system.setup, rate=first, requests=count * requests, seed=seed)
    _, node = simulated(system, setup, stepped([(requests, rate) for rate in rates], seed), Recorder)
    recorder = node.scheduler
    assert isinstance(recorder, Recorder)
    latency = np.array([recorder.latency_ns[number] for number in range(1, count * requests + 1)]) / 1e6
    return [
        {"rate": rate, "mean_ms": float(part.mean()), "p99_ms": float(np.quantile(part, 0.99))}
        for rate, part in zip(rates, latency.reshape(count, requests), strict=True)
    ]


def kept(steps: list[dict[str, float]]) -> float:
    """The rate of the last step up to which 99 % keep the QoS; 0 where the first one does not."""
    best = 0.0
    for step in steps:
        if step["p99_ms"] > QOS_MS:
            break
        best = step["rate"]
    return best


def peak(system: System, requests: int) -> float:
    """The largest rate at which 99 % of the requests keep the QoS."""
    low, high = 0.0, 1.5 * system.setup.peak
    for _ in range(_STEPS):
        middle = (low + high) / 2
        keeps = figures(system, middle, requests)["p99_ms"] <= QOS_MS
        low, high = (middle, high) if keeps else (low, middle)
    return low
