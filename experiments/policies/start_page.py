"""docs/bench/policies-start.md from stored figures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown

TARGET = 1.01
Data = dict[str, Any]


def write(data: Data, folder: Path) -> list[str]:
    settings = data["settings"]
    parts = [
        "# `adaptive` and `no_wait` after an ordinary start",
        f"Servers of both policies start with empty folders of profiles and are left alone for {settings['idle']:g} s, "
        "so that each measures its model while it is idle. Under `busy` a process keeps one core busy until the load "
        "begins. Then both get the same arrivals of the same seeds in turns: one worker of one thread, binary payload, "
        f"Poisson, {settings['rounds']} rounds of {settings['seconds']:g} s at each load. Loads are shares of the peak "
        "of `no_wait` (99th percentile within 200 ms). The ratio is the geometric mean over the rounds of the ratio of "
        "the mean latencies, with Student's 95 % interval. Client and server share the machine's cores.",
        markdown.table(
            ["model", "start", "load", "`adaptive`, ms", "`no_wait`, ms", "ratio", "95 % interval", "median", ""],
            map(row_of, data["cells"]),
        ),
        f"The target is a ratio of at most {TARGET}. Where the interval holds it, the rounds do not tell.",
        markdown.facts_list(data["facts"]),
    ]
    return [markdown.write(parts, folder / "policies-start.md")]


def row_of(cell: Data) -> Sequence[str]:
    low, ratio, high = cell["ratio"]
    ours, other = (sum(times) / len(times) for times in (cell["adaptive_ms"], cell["no_wait_ms"]))
    ratios = [one / another for one, another in zip(cell["adaptive_ms"], cell["no_wait_ms"], strict=True)]
    verdict = "met" if ratio <= TARGET else "not told" if low <= TARGET else "**missed**"
    return (
        cell["model"], cell["start"], f"{cell['share']:.0%} of {cell['peak']:.0f}/s", markdown.ms(ours),
        markdown.ms(other), f"{ratio:.3f}", f"{low:.3f} to {high:.3f}", f"{median(ratios):.3f}", verdict,
    )  # fmt: skip
