"""The page of `ahead`: mean latencies of three ways to hand over a second unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from experiments.common.samples import standard_error
from loadtest.common import markdown
from loadtest.common.markdown import ms

WITHIN = 0.03  # of the better of depth 1 and depth 2 at once


class Cell(TypedDict):
    """One curve at one load: mean latencies in ms by seed."""

    curve: str
    load: float
    rate: float
    depth_1: list[float]
    at_once: list[float]
    ahead: list[float]


class Ahead(TypedDict):
    facts: dict[str, str]
    settings: dict[str, Any]
    cells: list[Cell]


HEAD = """\
# Push ahead is a time

A worker may be handed a second batch while it runs a first, so that the launch of the second costs the device no time.
But a batch that is handed over early is made of fewer rows. Simulated: `adaptive` on one worker of 32 rows, a launch
cost of {launch_ms:g} ms, Poisson arrivals, {seeds} seeds of {requests:,} requests; loads are shares of the best rows/s
that the curve allows without the launch cost. A batch handed to an idle worker starts {launch_ms:g} ms later. Behind a
running batch it starts when that one has ended and its own launch is over.

Three ways are compared. "depth 1": a batch is handed over when the one before it has ended. "depth 2, at once": the
second batch is handed over as soon as rows wait. "depth 2, within {ahead_ms:g} ms": it is handed over when the first is
predicted to end within {ahead_ms:g} ms (`--push-ahead-ms {ahead_ms:g}`). Mean latencies in ms. "against the better"
compares the third way with the better of the other two, ± standard error over seeds; the target is at most {within:.0%}
above it.
"""
HEADINGS = (
    "batch times, ms", "load", "rate/s", "depth 1", "depth 2, at once", "depth 2, within {ahead_ms:g} ms",
    "against the better", "within",
)  # fmt: skip


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def above(cell: Cell) -> list[float]:
    """By seed: mean latency within the time over the better of the other two, less one."""
    better = min((cell["depth_1"], cell["at_once"]), key=mean)
    return [ahead / other - 1 for ahead, other in zip(cell["ahead"], better, strict=True)]


def row(cell: Cell) -> list[str]:
    found = above(cell)
    return [
        cell["curve"], f"{cell['load']:g}", f"{cell['rate']:.1f}",
        *(ms(mean(cell[way])) for way in ("depth_1", "at_once", "ahead")),
        f"{mean(found):+.1%} ± {100 * standard_error(found):.1f}", "yes" if mean(found) <= WITHIN else "NO",
    ]  # fmt: skip


def missed(data: Mapping[str, Any]) -> list[str]:
    """The cells in which handing over within the time is too far above the better of the other two."""
    return [
        f"{cell['curve']}, load {cell['load']:g}: {mean(above(cell)):+.1%}"
        for cell in data["cells"]
        if mean(above(cell)) > WITHIN
    ]


def write(data: Ahead, folder: Path) -> list[str]:
    settings = data["settings"]
    parts = [
        HEAD.format(**settings, within=WITHIN),
        markdown.table([heading.format(**settings) for heading in HEADINGS], map(row, data["cells"])),
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "ahead.md")]
