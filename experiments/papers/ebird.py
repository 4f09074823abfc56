"""Simulates Ebird's Figures 8 and 9: `python -m experiments.papers.ebird`.

Six networks on a modelled GPU (see `modelled_gpu`). The baseline is TF-Serving as the paper describes it: batches are
joined on the CPU, copied and run one after another. Ebird and `adaptive` copy each input as it arrives and run six
units at once. The throughput under QoS is also found with the same assumptions for both, and with all of them against
Ebird. Writes docs/bench/ebird.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np

from app.scheduler.policies import default_workers
from experiments.common.processes import spread
from experiments.common.simulated import Policy, stepped
from experiments.papers.ebird_contenders import (
    DELAYS,
    HIGH,
    THREADS,
    UNITS,
    Contender,
    baseline,
    contenders,
    starling,
    tuned,
)
from experiments.papers.modelled_gpu import LAYER_MS, MAX_BATCH, NETWORKS, QOS_MS, SMS, Network
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, standard_error

LOW = 0.3  # Figure 8: from this share of the largest rate to HIGH
# Assumptions that the headlines name.
ALL_ALIKE = "all alike"
ALL_AGAINST = "all against Ebird"
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
    stable = {name: throughput(one, 1000 / network.image_ms, scale.stable) for name, one in servers.items()}
    near = {name: servers[name] for name in ("window, tuned", "window, paper's", "ebird", "adaptive")}
    found["throughput"] = stable
    found["near_qos"] = burst(near, LOW * capacity, stable["window, tuned"], scale.seeds)
    return found


#: The assumptions behind Ebird's gain in throughput: the same for both sides, then all of them against Ebird.
CORNERS: dict[str, dict[str, dict[str, Any]]] = {
    "as assumed": {"": {}},
    ALL_ALIKE: {
        "no joining, copies overlap, no gap": {"join": 0.0, "joined_overlap": 1.0, "gap_ms": 0.0},
    },
    ALL_AGAINST: {
        f"no joining, the baseline's copies overlap and Ebird's do not, the gap is Ebird's; {rate:g} GB/s": {
            "join": 0.0, "joined_overlap": 1.0, "overlap": 0.0, "gap_ms": 0.0, "own_gap_ms": 1.0, "copy_gb_s": rate,
        }
        for rate in (12.0, 3.0, 1.5)
    },
}  # fmt: skip


def corner(given: tuple[str, str, Scale]) -> dict[str, Any]:
    """Figure 9 with a changed assumption: the tuned window, `ebird` and `adaptive` on all networks."""
    assumption, name, scale = given
    found: dict[str, Any] = {"assumption": assumption, "corner": name, "throughput": {}}
    for known in NETWORKS:
        network = replace(known, **CORNERS[assumption][name])
        delay = tuned(network, "window", max(2, scale.seeds // 4))
        servers = {
            "window, tuned": baseline(network, Policy("window", delay)),
            "ebird": starling(network, Policy("ebird"), default_workers("ebird", MAX_BATCH)),
            "adaptive": starling(network, Policy("adaptive"), (MAX_BATCH,) * UNITS),
        }
        for server, one in servers.items():
            rate = throughput(one, 1000 / network.image_ms, scale.stable)
            found["throughput"].setdefault(server, []).append(rate)
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=Scale.seeds, help=f"runs of Figures 2 and 8 [{Scale.seeds}]")
    parser.add_argument("--stable", type=int, default=Scale.stable, help=f"seconds of a stable run [{Scale.stable}]")


def settings() -> dict[str, Any]:
    plain = NETWORKS[0]
    return {
        "sms": SMS, "max_batch": MAX_BATCH, "qos_ms": QOS_MS, "layer_ms": LAYER_MS, "copy_gb_s": plain.copy_gb_s,
        "gap_ms": plain.gap_ms, "threads": THREADS, "low": LOW, "high": HIGH,
        "delays_ms": list(DELAYS),
    }  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    scale = Scale(chosen.seeds, chosen.stable)
    corners = [(assumption, name, scale) for assumption, names in CORNERS.items() for name in names]
    return {
        "settings": settings(),
        "studies": spread(study, [(network, scale) for network in NETWORKS], run.say),
        "corners": spread(corner, corners, run.say),
    }


SERVERS = ("ebird", "adaptive")
PAPERS, TUNED = "window, paper's", "window, tuned"


def reduction(runs: Data, name: str, base: str, part: str) -> tuple[float, float]:
    """By which share the mean latency of `name` is below that of `base`, with its standard error over seeds."""
    ours, theirs = np.asarray(runs[name][f"{part}_ms"]), np.asarray(runs[base][f"{part}_ms"])
    ratio = float(ours.mean() / theirs.mean())
    return 1 - ratio, standard_error((ours - ratio * theirs) / theirs.mean())  # of a ratio of means over common seeds


def span(values: Sequence[float]) -> str:
    return f"{min(values):.1%} to {max(values):.1%}"


def lower(studies: Sequence[Data], figure: str, name: str, base: str, part: str) -> str:
    """The range over the networks of what a server's mean latency is below that of another."""
    return span([reduction(found[figure], name, base, part)[0] for found in studies])


def gains(rates: dict[str, Sequence[float]], server: str) -> list[float]:
    """Throughput over that of the tuned window, less one, for each network."""
    pairs = zip(rates[server], rates[TUNED], strict=True)
    return [rate / base - 1 if base else float("nan") for rate, base in pairs]


def more(studies: Sequence[Data], server: str) -> str:
    names = (server, TUNED)
    found = gains({name: [study["throughput"][name] for study in studies] for name in names}, server)
    return f"{fmean(found):.1%} ({max(found):.1%})"


def cornered(corners: Sequence[Data], assumption: str, server: str) -> str:
    """The range over an assumption's corners of the mean gain over the networks."""
    means = [fmean(gains(one["throughput"], server)) for one in corners if one["assumption"] == assumption]
    return f"{means[0]:.1%}" if len(means) == 1 else span(means)


PAGE = Page("ebird", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.papers.ebird", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
