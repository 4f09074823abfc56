"""Simulates Ebird's Figures 8 and 9: `python -m experiments.papers.ebird`.

Six networks on a modelled GPU (see `modelled_gpu`). The baseline is TF-Serving as the paper describes it: batches are
joined on the CPU, copied and run one after another. Ebird and `adaptive` copy each input as it arrives and run six
units at once. The throughput under QoS is also found with the same assumptions for both. Writes docs/bench/ebird.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from experiments.common.processes import spread
from experiments.common.simulated import stepped
from experiments.papers.ebird_contenders import (
    DELAYS,
    HIGH,
    Contender,
    contenders,
)
from experiments.papers.modelled_gpu import LAYER_MS, MAX_BATCH, NETWORKS, QOS_MS, SMS, Network
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, standard_error

LOW = 0.3  # Figure 8: from this share of the largest rate to HIGH
#: The same assumptions for both sides: nothing is joined, copies overlap, and there is no gap.
ALIKE: dict[str, Any] = {"join": 0.0, "joined_overlap": 1.0, "gap_ms": 0.0}
SERVERS = ("ebird", "adaptive")
PAPERS, TUNED = "window, paper's", "window, tuned"
_GRID = 100  # rates tried for Figure 9, in steps of 1 % of what the SMs can do
_WARM = 0.05  # of a stable run, left out


@dataclass(frozen=True)
class Scale:
    """How much is run: seeds of Figures 2 and 8, seconds of a stable run.

    A stable run has a length in seconds, because in overload latencies grow with time and a short run hides that.
    """

    seeds: int = 40
    stable: int = 60


def burst(servers: dict[str, Contender], low: float, high: float, seeds: int) -> dict[str, Any]:
    """Figure 8: 150 requests at the low rate, 250 at the high. Means of each part by seed."""
    found: dict[str, Any] = {}
    arrivals = [stepped([(150, low), (250, high)], seed) for seed in range(seeds)]
    for name, contender in servers.items():
        runs = np.array([contender.latency_ms(instants) for instants in arrivals])
        found[name] = {
            "low_ms": runs[:, :150].mean(axis=1).round(4), "high_ms": runs[:, 150:].mean(axis=1).round(4),
            "high_p99_ms": float(np.quantile(runs[:, 150:], 0.99)), "over_qos": float((runs > QOS_MS).mean()),
        }  # fmt: skip
    return found


def throughput(contender: Contender, peak: float, seconds: int) -> float:
    """Figure 9: the largest stable rate whose 99th percentile meets the QoS, to 1 % of `peak`; 0 if none does."""

    def keeps(share: int) -> bool:
        rate = share / _GRID * peak
        latency = contender.latency_ms(stepped([(max(1, round(seconds * rate)), rate)], 0))
        return bool(np.quantile(latency[int(_WARM * len(latency)) :], 0.99) <= QOS_MS)

    low, high = 0, _GRID  # at the peak itself, queues grow without end
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low / _GRID * peak


def study(given: tuple[Network, Scale]) -> dict[str, Any]:
    """All figures of one network."""
    network, scale = given
    capacity = network.joined().peak
    servers, delays = contenders(network, max(2, scale.seeds // 4))
    found: dict[str, Any] = {
        "network": network.name, "capacity": capacity, "gpu_peak": 1000 / network.image_ms, "delays_ms": delays,
        "times_ms": {"1": network.alone_ms(1), "32": network.alone_ms(MAX_BATCH), "copy": network.copy_ms,
                     "joined 32": network.joined().batch_ns[-1] / 1e6},
        "burst": burst(servers, LOW * capacity, HIGH * capacity, scale.seeds),
    }  # fmt: skip
    found["throughput"] = {name: throughput(one, found["gpu_peak"], scale.stable) for name, one in servers.items()}
    alike, _ = contenders(replace(network, **ALIKE), max(2, scale.seeds // 4))
    found["alike"] = {name: throughput(alike[name], found["gpu_peak"], scale.stable) for name in (TUNED, *SERVERS)}
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=Scale.seeds, help=f"runs of Figures 2 and 8 [{Scale.seeds}]")
    parser.add_argument("--stable", type=int, default=Scale.stable, help=f"seconds of a stable run [{Scale.stable}]")


def settings() -> dict[str, Any]:
    plain = NETWORKS[0]
    return {
        "sms": SMS, "max_batch": MAX_BATCH, "qos_ms": QOS_MS, "layer_ms": LAYER_MS, "copy_gb_s": plain.copy_gb_s,
        "gap_ms": plain.gap_ms, "low": LOW, "high": HIGH,
        "delays_ms": list(DELAYS),
    }  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    scale = Scale(chosen.seeds, chosen.stable)
    return {
        "settings": settings(),
        "studies": spread(study, [(network, scale) for network in NETWORKS], run.say),
    }


def reduction(runs: Data, name: str, base: str, part: str) -> tuple[float, float]:
    """By which share the mean latency of `name` is below that of `base`, with its standard error over seeds."""
    ours, theirs = np.asarray(runs[name][f"{part}_ms"]), np.asarray(runs[base][f"{part}_ms"])
    ratio = float(ours.mean() / theirs.mean())
    return 1 - ratio, standard_error((ours - ratio * theirs) / theirs.mean())  # of a ratio of means over common seeds


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1%} to {max(values):.1%}"


def lower(studies: Sequence[Data], name: str, base: str, part: str) -> str:
    """The range over the networks of what a server's mean latency is below that of another."""
    return span([reduction(found["burst"], name, base, part)[0] for found in studies])


def more(studies: Sequence[Data], server: str, figure: str = "throughput") -> str:
    """Throughput over that of the tuned window, less one: the mean over the networks, and the most."""
    found = [one[figure][server] / one[figure][TUNED] - 1 for one in studies]
    return f"{fmean(found):.1%} ({max(found):.1%})"


PAGE = Page("ebird", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.papers.ebird", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
