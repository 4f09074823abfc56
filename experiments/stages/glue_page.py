"""The page of `glue`: rows per second and latencies of a served encoder, by how batches are filled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.common.samples import standard_error
from loadtest.common import markdown
from loadtest.common.markdown import ms, table

CLOSED = 1.8  # of the rows per second by count, at least
HALF = 0.5  # of the mean by count at the highest load, at most
SIZES = ("1", "4", "8", "16", "32")

HEAD = """\
# Rows of different lengths, served

A 6-layer encoder of width 256, lengths `{lengths}`, {threads} thread(s), over HTTP. The servers
differ in how batches are filled only: "by length" is `adaptive`, "by count" the same with `reorder = false`, "all that
waits" is `no_wait`, "buckets" is `adaptive` with `length_buckets`. Each cell is {repeats} runs of {seconds:g} s, the
servers asked in turns. [Simulated](lengths.md) is the same without HTTP and noise.
"""
CLOSED_LOOP = """\
## A closed loop

{connections} connections, each sending its next request when the last one is answered. Batches are as a row sees them.
"""
OPEN = """\
## Poisson arrivals

Mean and 99 % latency in ms. A load of 1 is {peak:.1f} requests a second: what the better way by count served in the
closed loop.
"""


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def _rate(cell: Mapping[str, Any]) -> str:
    return f"{mean(cell['rows_per_s']):.1f} ± {standard_error(cell['rows_per_s']):.1f}"


def gain(data: Mapping[str, Any]) -> float:
    """Rows per second by length over those of the better way by count."""
    return mean(data["closed"]["by length"]["rows_per_s"]) / float(data["peak"])


def closed_loop(data: Mapping[str, Any]) -> str:
    rows = [
        [way, _rate(cell), ms(mean(cell["mean_ms"])), ms(cell["p99_ms"]), f"{cell['batch']:.1f}", f"{cell['errors']}"]
        for way, cell in data["closed"].items()
    ]
    return table(("", "rows/s", "mean, ms", "99 %, ms", "rows a batch", "errors"), rows)


def open_loop(data: Mapping[str, Any]) -> str:
    rows = []
    for load, cells in data["loads"].items():
        both = [f"{ms(mean(cell['mean_ms']))} / {ms(cell['p99_ms'])}" for cell in cells.values()]
        ratio = mean(cells["by length"]["mean_ms"]) / mean(cells["by count"]["mean_ms"])
        rows.append([load, *both, f"{ratio:.2f} x"])
    return table(["load", *next(iter(data["loads"].values())), "mean, by length / by count"], rows)


def times(data: Mapping[str, Any]) -> str:
    known = data["profile"]["length_ms"]
    sizes = [size for size in SIZES if size in next(iter(known.values()))]
    rows = [[length, *(ms(by_size[size]) for size in sizes)] for length, by_size in known.items()]
    return table(["tokens", *(f"{size} row{'s' * (size != '1')}" for size in sizes)], rows)


def missed(data: Mapping[str, Any]) -> list[str]:
    """The targets that are missed, a line each."""
    lines = [] if gain(data) >= CLOSED else [f"closed loop: {gain(data):.2f} x, not {CLOSED:g} x"]
    for load, cells in data["loads"].items():
        ours, count = cells["by length"], cells["by count"]
        ratio = mean(ours["mean_ms"]) / mean(count["mean_ms"])
        if ratio >= 1 or ours["p99_ms"] >= count["p99_ms"]:
            lines.append(f"load {load}: mean {ratio:.2f} x, 99 % {ours['p99_ms'] / count['p99_ms']:.2f} x, not lower")
        if load == list(data["loads"])[-1] and ratio > HALF:
            lines.append(f"load {load}: mean {ratio:.2f} x, not {HALF:g} x")
    return lines


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    settings, faults = data["settings"], missed(data)
    parts = [
        HEAD.format(**settings), CLOSED_LOOP.format(**settings), closed_loop(data),
        f"By length {gain(data):.2f} times the better way by count.", OPEN.format(peak=data["peak"]), open_loop(data),
        f"Targets: {CLOSED:g} x in the closed loop; mean and 99 % lower at each load, at the highest the mean at most "
        f"{HALF:g} x. Missed: {'; '.join(faults) or 'none'}.",
        "## Batch times", "Measured before, in ms, all rows of one length.", times(data),
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "glue.md")]
