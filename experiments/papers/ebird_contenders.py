"""The servers of Ebird's figures: the baseline, Ebird, `adaptive`, and variants that separate engine and policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from experiments.common.simulated import Instants, Policy, Server, serve, stepped
from experiments.papers.modelled_gpu import MAX_BATCH, NETWORKS, Network, SharedSms
from planner.option_values import default_workers
from planner.simulated_device import SimulatedDevice

HIGH = 0.9  # the high rate of Figure 8: a share of the largest
DELAYS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0)
PAPER_DELAY_MS = 30.0  # the paper's OPT Wait for ResNet-152; other networks in proportion to T(32)
UNITS = 6  # units at once, one for each of Ebird's workers


@dataclass(frozen=True)
class Contender:
    """A server, and the network whose SMs its units share; None if units run one after another."""

    server: Server
    network: Network | None = None

    def latency_ms(self, instants: Instants) -> np.ndarray:
        device = None if self.network is None else cast("SimulatedDevice", SharedSms(self.network))
        return serve(self.server, instants, device).latency_ms


def baseline(network: Network, policy: Policy) -> Contender:
    """TF-Serving."""
    return Contender(Server(policy, network.joined(), (MAX_BATCH,)))


def starling(network: Network, policy: Policy, workers: Sequence[int]) -> Contender:
    """A server that copies inputs as they arrive and has a stream for each worker."""
    copy_ns = round(network.copy_ms * 1e6)
    return Contender(
        Server(policy, network.profile(max(2, len(workers))), tuple(workers), len(workers), copy_ns), network
    )


def paper_delay(network: Network) -> float:
    reference = next(one for one in NETWORKS if one.name == "ResNet-152")
    return PAPER_DELAY_MS * network.alone_ms(MAX_BATCH) / reference.alone_ms(MAX_BATCH)


def tuned(network: Network, seeds: int) -> float:
    """The delay with the least mean latency at the high rate."""
    arrivals = [stepped([(400, HIGH * network.joined().peak)], seed) for seed in range(seeds)]
    means = {delay: _mean(baseline(network, Policy("window", delay)), arrivals) for delay in DELAYS}
    return min(means, key=lambda delay: means[delay])


def _mean(contender: Contender, arrivals: Sequence[Instants]) -> float:
    return float(np.mean([contender.latency_ms(instants).mean() for instants in arrivals]))


def contenders(network: Network, seeds: int) -> tuple[dict[str, Contender], dict[str, float]]:
    """The compared servers by name, and the delays of those that wait."""
    delays = {
        "window, tuned": tuned(network, seeds),
        "window, paper's": paper_delay(network),
    }
    servers = {
        "window, tuned": baseline(network, Policy("window", delays["window, tuned"])),
        "window, paper's": baseline(network, Policy("window", delays["window, paper's"])),
        "no_wait": baseline(network, Policy("no_wait")),
        "ebird": starling(network, Policy("ebird"), default_workers("ebird", MAX_BATCH)),
        "adaptive": starling(network, Policy("adaptive"), (MAX_BATCH,) * UNITS),
    }
    return servers, delays
