"""Simulates DVABatch's and Late Batching's experiments: `python -m experiments.papers.stages`.

DVABatch: six networks in stages on a modelled GPU, mean and 99 % latency at 1/4, 3/5 and 9/10 of the peak, against
batches of the whole model without a window (ZeroBatch) and with one tuned for the peak (DelayBatch); split alone,
other numbers of stages. Late Batching: an LSTM cell against padded buckets on
the same device. Writes docs/bench/stages.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from statistics import fmean
from typing import Any

from experiments.common.networks import BUCKETS, FAST, MAX_BATCH, RTE, Network
from experiments.common.processes import spread
from experiments.papers.stages_cells import CELL_BATCH, CELL_FILL, CELL_MS, DATASETS, WMT, cells
from experiments.papers.stages_runs import (
    AHEAD,
    COMPLETE_WAIT,
    PAIRS,
    QOS_MS,
    System,
    figures,
    peak,
    systems,
)
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page

LOADS = {"low": 0.25, "medium": 0.6, "high": 0.9}
DELAYS = (2.0, 5.0, 10.0)  # ms, of DelayBatch
PEAKS = ("DelayBatch", "DVABatch", "adaptive")  # whose peaks are sought
TRIED_STAGES = (1, 2, 4, 8, 20)
TRIED_WAITS = (1.0, 0.5, 0.3, 0.25, 0.1, 0.05)  # T_comp_wait over T(1)
BOUNDARY_MS = 0.1  # what each stage beyond the first costs: the paper's 0.29 ms for its two to four stages


def study(given: tuple[Network, int]) -> dict[str, Any]:
    """One network: every system at three loads, the peaks, the stepping load, and the numbers of pairs and stages."""
    network, requests = given
    peaks = {delay: peak(systems(network, delay)["DelayBatch"], requests) for delay in DELAYS}
    delay = max(peaks, key=lambda one: peaks[one])  # the shortest of equals
    found: dict[str, Any] = {"network": asdict(network), "delay_ms": delay, "peaks": {}, "loads": {}}
    for name, system in systems(network, delay).items():
        if name == "split alone" and network.policy != "dva_load":
            continue
        if name in PEAKS:
            found["peaks"][name] = peaks[delay] if name == "DelayBatch" else peak(system, requests)
        found["loads"][name] = {
            load: figures(system, share * peaks[delay], requests, 1) for load, share in LOADS.items()
        }
    if network.policy == "dva_load":
        found["waits"] = {
            wait: {load: figures(waiting(network, wait), share * peaks[delay], requests, 1)["mean_ms"]
                   for load, share in LOADS.items()}
            for wait in TRIED_WAITS
        }  # fmt: skip
    if network.name in ("BertBase", "LinkNet", "ResNet152"):
        found["stages"] = {
            count: figures(
                systems(in_stages(network, count), delay)["DVABatch"], LOADS["high"] * peaks[delay], requests, 1
            )["mean_ms"]
            for count in TRIED_STAGES
        }
    return found


def waiting(network: Network, wait: float) -> System:
    """DVABatch with this T_comp_wait over T(1)."""
    system = systems(network, DELAYS[0])["DVABatch"]
    return replace(system, setup=replace(system.setup, complete_wait=wait))


def in_stages(network: Network, count: int) -> Network:
    """The same operators in so many stages; launches in proportion, and each cut at its cost."""
    fills, launches = network.fills, network.launch_ms * len(network.fills)
    return replace(
        network, launch_ms=(launches + BOUNDARY_MS * (count - 1)) / count,
        fills=tuple(fills[at * len(fills) // count] for at in range(count)),
    )  # fmt: skip


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--requests", type=int, default=3_000, help="requests of each run at least [3000]")
    parser.add_argument("--sequences", type=int, default=100_000, help="of each run of Late Batching's [100000]")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    settings = {
        "max_batch": MAX_BATCH, "qos_ms": QOS_MS, "loads": LOADS, "delays_ms": list(DELAYS), "rte": RTE,
        "buckets": list(BUCKETS), "wmt": WMT, "cell_ms": CELL_MS, "cell_fill": CELL_FILL, "cell_batch": CELL_BATCH,
        "ahead": AHEAD, "pairs": PAIRS, "boundary_ms": BOUNDARY_MS,
        "requests": chosen.requests, "sequences": chosen.sequences, "complete_wait": COMPLETE_WAIT,
    }  # fmt: skip
    return {
        "settings": settings,
        "studies": spread(study, [(network, chosen.requests) for network in FAST], run.say),
        "cells": spread(cells, [(name, chosen.sequences) for name in DATASETS], run.say),
    }


PUBLISHED_PEAKS = {"BertBase": "+46.8 %", "BertLarge": "1.37 x"}


def percent(value: float) -> str:
    return f"{100 * value:+.1f} %"


def reductions(studies: Sequence[Data], name: str, base: str, figure: str = "mean_ms") -> list[float]:
    """By load: by which share a figure of `name` is below that of `base`, on average over the networks that have it."""
    known = [found["loads"] for found in studies if name in found["loads"]]
    return [fmean(1 - loads[name][load][figure] / loads[base][load][figure] for loads in known) for load in LOADS]


def over_delay(found: Data, name: str) -> float:
    """The peak over that of DelayBatch, less one."""
    return float(found["peaks"][name] / found["peaks"]["DelayBatch"] - 1)


def best(studies: Sequence[Data]) -> str:
    """The number of stages with the least mean latency by network."""
    times = {found["network"]["name"]: found["stages"] for found in studies if "stages" in found}
    return ", ".join(f"{name} {min(one, key=lambda count: one[count])}" for name, one in times.items())


def waited(studies: Sequence[Data], wait: str, base: str) -> list[float]:
    """`reductions` of DVABatch with another T_comp_wait. The Berts, which stretch nothing, keep theirs."""

    def mean_ms(found: Data, load: str) -> float:
        return float(found["waits"][wait][load] if "waits" in found else found["loads"]["DVABatch"][load]["mean_ms"])

    return [fmean(1 - mean_ms(one, load) / one["loads"][base][load]["mean_ms"] for one in studies) for load in LOADS]


PAGE = Page("stages", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.papers.stages", __doc__, measure, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
