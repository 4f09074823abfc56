"""Simulates the adaptive batching of Khan et al.: `python -m experiments.papers.adaptive_batching`.

Figure 2: the rate rises from 1 to 240 requests/s within 300 s. Compares the paper's batches of the preferred size with
the largest batch under a deadline, with ad hoc batches, and with `adaptive`, by mean latency and requests per joule.
Writes docs/bench/adaptive_batching.json.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from experiments.common.processes import spread
from experiments.common.simulated import FOREVER_MS, Instants, Policy, Server, serve
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from planner.profile_times import linear

MAX_BATCH = 32
SECONDS = 300
TOP = 240.0  # requests per second
DEADLINE_MS = 200.0
BOUND_MS = 20.0  # longest wait of the bounded preset
#: Idle and busy watts for which the preset's requests per joule lie in the published range, 0.46 to 0.97.
IDLE_W, BUSY_W = 100.0, 300.0


@dataclass(frozen=True)
class Network:
    """Batch times in ms are `fixed_ms` + `row_ms` x b. `theirs_ms`: the published mean latency."""

    name: str
    fixed_ms: float
    row_ms: float
    theirs_ms: float


#: The paper states neither GPU nor batch times. These are round numbers for which the literal preset's mean latency on
#: the ramp is near the published one: latencies are fitted, their ratios are not.
NETWORKS = (
    Network("BertBase", 6.0, 2.8, 45.78),
    Network("VGG19", 0.8, 0.5, 6.11),
    Network("ResNet50", 2.0, 0.4, 7.29),
    Network("ResNet101", 4.0, 0.6, 9.67),
)


def ramp(seconds: int, top: float, seed: int) -> Instants:
    """Poisson arrivals at a rate that rises in a straight line from 1 to `top` per second."""
    # Operational time: the expected number of requests until t is t + (top - 1) t^2 / (2 seconds); inverted.
    slope = (top - 1) / seconds
    last = seconds + slope * seconds**2 / 2
    draws = np.random.default_rng(seed).exponential(size=int(last + 10 * np.sqrt(last) + 10)).cumsum()
    numbers = draws[draws < last]
    return np.rint((np.sqrt(1 + 2 * slope * numbers) - 1) / slope * 1e9).astype(np.int64)


def policies(network: Network) -> dict[str, Policy]:
    """The policies by name. Max batch waits as long as the deadline allows, less the time of the largest batch."""
    slack = max(0.0, DEADLINE_MS - network.fixed_ms - network.row_ms * MAX_BATCH)
    return {
        "max batch": Policy("window", slack),
        "max batch, padded": Policy("static", slack),
        "ad hoc": Policy("no_wait"),
        "preferred, literal": Policy("preferred", FOREVER_MS),
        "preferred, bounded": Policy("preferred", BOUND_MS),
        "adaptive": Policy("adaptive"),
    }


def run(network: Network, policy: Policy, instants: Instants) -> dict[str, float]:
    """Simulate one policy. Energy covers the whole ramp, idle time included."""
    profile = linear(network.fixed_ms, network.row_ms, MAX_BATCH)
    served = serve(Server(policy, profile, (MAX_BATCH,)), instants)
    tally = served.tally
    # The literal preset never answers the last request. Those few are counted separately.
    answered = served.latency_ms[served.latency_ms < FOREVER_MS / 2]
    joules = (IDLE_W + (BUSY_W - IDLE_W) * served.busy) * float(instants[-1]) / 1e9
    return {
        "mean_ms": float(answered.mean()), "p99_ms": float(np.quantile(answered, 0.99)),
        "left": float(len(served.latency_ms) - len(answered)),
        "batch": tally.rows / tally.units, "busy": served.busy, "per_joule": len(instants) / joules,
        "busy_ms_per_request": tally.busy_ns / 1e6 / len(instants),
    }  # fmt: skip


def study(given: tuple[Network, int, int]) -> dict[str, Any]:
    """One network: each figure of each policy, by seed."""
    network, seeds, seconds = given
    found: dict[str, Any] = {"network": network.name, "theirs_ms": network.theirs_ms, "policies": {}}
    arrivals = [ramp(seconds, TOP, seed) for seed in range(seeds)]
    for name, policy in policies(network).items():
        runs = [run(network, policy, instants) for instants in arrivals]
        found["policies"][name] = {key: [one[key] for one in runs] for key in runs[0]}
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=4, help="of arrivals [4]")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"length of the ramp [{SECONDS}]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    cells = [(network, chosen.seeds, chosen.seconds) for network in NETWORKS]
    settings = {
        "max_batch": MAX_BATCH, "deadline_ms": DEADLINE_MS, "bound_ms": BOUND_MS, "idle_w": IDLE_W,
        "busy_w": BUSY_W,
    }  # fmt: skip
    return {
        "settings": settings, "networks": [asdict(network) for network in NETWORKS],
        "studies": spread(study, cells, run.say),
    }  # fmt: skip


LITERAL = "preferred, literal"


def ratios(found: Data, above: str, below: str, figure: str) -> list[float]:
    """A figure of one policy over that of another, by seed."""
    pairs = zip(found["policies"][above][figure], found["policies"][below][figure], strict=True)
    return [one / other for one, other in pairs]


PAGE = Page("adaptive_batching", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.papers.adaptive_batching", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
