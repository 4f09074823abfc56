"""The page of how long a real-time call waits behind best-effort work, by number of stages."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

Figures = Mapping[str, Any]

BEYOND_MS = 1.0  # the longest stage, and so much

HEAD = """\
# How long a real-time call waits behind best-effort work

An encoder of {layers} layers on {tokens} tokens, cut into stages, on one worker of one thread, in process and without
HTTP. {waiting} best-effort calls of one row wait at any time; real-time calls of the same model come one at a time,
{gap_ms:g} ms after the last on average, at random: {rounds} round(s) of {calls} for each number of stages, in turns.
The wait is from a call's arrival to when the worker turns to its first unit. Nothing that runs is killed: the best
that can be had is the rest of one stage.
"""
BEHIND = """\
The last column counts best-effort stages that began more than 1 ms after a real-time call's arrival and before its
start. None is meant to; where the loop or the worker waits for a core for as long, some do. What else is waited, beyond
the rest of a stage, is the way to the worker and other processes.
"""


def waits_ms(one: Figures) -> list[float]:
    return sorted(wait / 1e3 for run in one["rounds"] for wait in run["waits_us"])


def longest_ms(one: Figures) -> float:
    """The median of the longest stage, in the rounds that were measured."""
    return median(run["longest_ns"] for run in one["rounds"]) / 1e6


def p99(one: Figures) -> float:
    return float(np.quantile(waits_ms(one), 0.99))


def missed(data: Figures) -> list[str]:
    """The targets that are missed, a line each."""
    return [
        f"{stages} stage(s): 99 % of the waits are up to {p99(one):.2f} ms, not {longest_ms(one) + BEYOND_MS:.2f}"
        for stages, one in data["stages"].items()
        if p99(one) > longest_ms(one) + BEYOND_MS
    ]


def write(data: Figures, folder: Path) -> list[str]:
    rows = []
    for stages, one in data["stages"].items():
        waits, runs = waits_ms(one), one["rounds"]
        by_round = [float(np.quantile(run["waits_us"], 0.99)) / 1e3 for run in runs]
        rows.append(
            [
                stages, ms(longest_ms(one)), ms(median(run["longest_p99_ns"] for run in runs) / 1e6),
                ms(float(np.quantile(waits, 0.5))), ms(p99(one)), f"{ms(min(by_round))} to {ms(max(by_round))}",
                ms(longest_ms(one) + BEYOND_MS), f"{one['alone_p99_ns'] / 1e6:.2f}", ms(one["alone_ms"]),
                ms(median(run["mean_ms"] for run in runs)), f"{median(run['per_s'] for run in runs):.1f}",
                f"{sum(run['behind'] for run in runs)} of {len(waits)} waits",
            ]
        )  # fmt: skip
    heads = (
        "stages", "longest stage, ms", "its 99 %", "wait: 50 %, ms", "99 %", "of a round", "target for 99 %",
        "alone, 99 %", "real-time call: alone, ms", "beside best effort", "best effort/s",
        "stages begun while one waited",
    )  # fmt: skip
    faults = missed(data)
    parts = [
        HEAD.format(**data["settings"]), table(heads, rows),
        f"Target: 99 % of the waits within the longest stage's median and {BEYOND_MS:g} ms. "
        f"Missed: {'; '.join(faults) or 'none'}.",
        BEHIND,
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "preemption.md")]
