"""Simulates Ebird's Figures 2, 8 and 9: `python -m experiments.papers.ebird`.

Six networks on a modelled GPU (see `modelled_gpu`). The baseline is TF-Serving as the paper describes it: batches are
joined on the CPU, copied and run one after another. Ebird and `adaptive` copy each input as it arrives and run six
units at once. The throughput under QoS is also found with each assumption at its extremes, and with all of them against
Ebird. Writes docs/bench/ebird.md, .json and plots.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
    paper_delay,
    starling,
    tuned,
    variants,
)
from experiments.papers.modelled_gpu import LAYER_MS, MAX_BATCH, NETWORKS, QOS_MS, SMS, Network
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, standard_error

LOW = 0.3  # Figure 8: from this share of the largest rate to HIGH
STEPS = (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)  # Figure 2: of the same, 150 requests each
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
    """Figure 8: 150 requests at the low rate, 250 at the high. Means of each part by seed, and one example run."""
    found: dict[str, Any] = {}
    arrivals = [stepped([(150, low), (250, high)], seed) for seed in range(seeds)]
    for name, contender in servers.items():
        runs = np.array([contender.latency_ms(instants) for instants in arrivals])
        found[name] = {
            "low_ms": runs[:, :150].mean(axis=1).round(4), "high_ms": runs[:, 150:].mean(axis=1).round(4),
            "high_p99_ms": float(np.quantile(runs[:, 150:], 0.99)), "over_qos": float((runs > QOS_MS).mean()),
            "run": runs[0].round(2),
        }  # fmt: skip
    return found


def climb(servers: dict[str, Contender], capacity: float, seeds: int) -> dict[str, Any]:
    """Figure 2: the rate rises every 150 requests. Means of each step over seeds, and one run as an example."""
    steps = [(150, share * capacity) for share in STEPS]
    arrivals = [stepped(steps, seed) for seed in range(seeds)]
    found: dict[str, Any] = {}
    for name, contender in servers.items():
        runs = np.array([contender.latency_ms(instants) for instants in arrivals])
        means = runs.reshape(seeds, len(STEPS), 150).mean(axis=(0, 2))
        found[name] = {"means_ms": means, "over_qos": float((runs > QOS_MS).mean()), "run": runs[0].round(2)}
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
        "climb": climb(servers, capacity, max(2, scale.seeds // 4)),
    }  # fmt: skip
    stable = {name: throughput(one, 1000 / network.image_ms, scale.stable) for name, one in servers.items()}
    near = {name: servers[name] for name in ("window, tuned", "window, paper's", "ebird", "adaptive")}
    found["throughput"] = stable
    found["near_qos"] = burst(near, LOW * capacity, stable["window, tuned"], scale.seeds)
    if network.name == "ResNet-152":
        found["variants"] = burst(variants(network), LOW * capacity, HIGH * capacity, scale.seeds)
    return found


#: Doubtful assumptions of the model, which are changed for all networks.
DOUBTS: dict[str, dict[str, Any]] = {
    "as assumed": {}, "1 image fills the GPU": {"fill": 1.0}, "8 images fill it": {"fill": 8.0},
    "16 images fill it": {"fill": 16.0}, "copies and gap halved": {"copy_gb_s": 6.0, "gap_ms": 0.5},
    "copies and gap doubled": {"copy_gb_s": 1.5, "gap_ms": 2.0},
    "each further unit costs 5 % of SM time": {"contention": 0.05},
}  # fmt: skip


def doubt(given: tuple[str, Scale]) -> dict[str, Any]:
    """The reductions of the mean latency under another assumption, for each network, at the low and the high rate."""
    name, scale = given
    found: dict[str, Any] = {"doubt": name, "low": [], "high": [], "adaptive_low": [], "adaptive_high": []}
    for known in NETWORKS:
        network = replace(known, **DOUBTS[name])
        capacity = network.joined().peak
        servers = {
            "window": baseline(network, Policy("window", paper_delay(known))),
            "ebird": starling(network, Policy("ebird"), default_workers("ebird", MAX_BATCH)),
            "adaptive": starling(network, Policy("adaptive"), (MAX_BATCH,) * UNITS),
        }
        runs = burst(servers, LOW * capacity, HIGH * capacity, max(2, scale.seeds // 4))
        for part in ("low", "high"):
            base = runs["window"][f"{part}_ms"].mean()
            found[part].append(float(1 - runs["ebird"][f"{part}_ms"].mean() / base))
            found[f"adaptive_{part}"].append(float(1 - runs["adaptive"][f"{part}_ms"].mean() / base))
    return found


#: The assumptions behind Ebird's gain in throughput: each alone at its extremes, then all of them against Ebird.
CORNERS: dict[str, dict[str, dict[str, Any]]] = {
    "as assumed": {"": {}},
    "copy rate": {"1.5 GB/s": {"copy_gb_s": 1.5}, "12 GB/s, as from pinned memory": {"copy_gb_s": 12.0}},
    "joining, in copies of a row": {"0: joined where they lie": {"join": 0.0}, "2": {"join": 2.0}},
    "copies and layers overlap": {
        "in the baseline, too": {"joined_overlap": 1.0},
        "nowhere: copies stop Ebird's layers": {"overlap": 0.0},
        "in the baseline alone": {"joined_overlap": 1.0, "overlap": 0.0},
    },
    "gap between units": {
        "none": {"gap_ms": 0.0}, "2 ms, the baseline's alone": {"gap_ms": 2.0}, "1 ms for both": {"own_gap_ms": 1.0},
        "1 ms, Ebird's alone": {"gap_ms": 0.0, "own_gap_ms": 1.0},
    },
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
        "gap_ms": plain.gap_ms, "threads": THREADS, "low": LOW, "high": HIGH, "steps": list(STEPS),
        "delays_ms": list(DELAYS),
    }  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    scale = Scale(chosen.seeds, chosen.stable)
    corners = [(assumption, name, scale) for assumption, names in CORNERS.items() for name in names]
    return {
        "settings": settings(),
        "studies": spread(study, [(network, scale) for network in NETWORKS], run.say),
        "doubts": spread(doubt, [(name, scale) for name in DOUBTS], run.say),
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


def draw(data: Data, folder: Path) -> None:
    from loadtest.common import plots

    studies, settings = data["studies"], data["settings"]

    def panels(figure: str, shares: Sequence[tuple[int, float]], shown: dict[str, str]) -> list[plots.Panel]:
        return [
            plots.Panel(
                found["network"],
                [(count, share * found["capacity"]) for count, share in shares],
                {title: found[figure][name]["run"] for name, title in shown.items()},
                qos_ms=settings["qos_ms"],
            )
            for found in studies
        ]

    threads = f"no_wait, {settings['threads']} threads"
    ours = {"ebird": "ebird", "adaptive": "adaptive"}
    climbing = {threads: threads, PAPERS: "window", "static": "static", **ours}
    sustained = {"static": "static", TUNED: "window", threads: threads, **ours}
    climb, burst = [(150, share) for share in settings["steps"]], [(150, settings["low"]), (250, settings["high"])]
    plots.latency_by_request(panels("climb", climb, climbing), folder / "ebird-steps.png")
    plots.latency_by_request(panels("burst", burst, {PAPERS: "window", **ours}), folder / "ebird-burst.png")
    plots.bars(
        [found["network"] for found in studies],
        {title: [found["throughput"][name] for found in studies] for name, title in sustained.items()},
        f"rate/s with 99 % within {settings['qos_ms']:.0f} ms",
        folder / "ebird-throughput.png",
    )


PAGE = Page("ebird", __name__, draw=draw)
EXPERIMENT = Experiment(PAGE, "experiments.papers.ebird", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
