"""The page of bulk work beside interactive requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

Figures = Mapping[str, Any]

REALTIME, BEST_EFFORT = 1.3, 0.85  # of p99 alone, at most; of the capacity left, at least

HEAD = """\
# Bulk work beside interactive requests

`mlp` over HTTP, one worker of one thread. Real-time requests of one row come at random, {rate:.0f} a second: {share:g}
of the {peak:.0f} a second that {connections} connections get in a closed loop. Best-effort requests are such a closed
loop. {repeats} run(s) of {seconds:g} s of each way and case, in turns; medians, in brackets the least and the largest.
What best effort gets alone is measured for half as long.
"""
LEFT = """\
The capacity left is the share of the time in which no real-time batch computes when real time is alone, of what the
same number of connections get alone and without classes: batches of real time are smaller than those of the closed
loop, so {share:g} of the rows take more than {share:g} of the time. How much work is handed over at once is bounded by
the budget, and with it the size of best-effort batches: that is what keeping real-time latency costs here.
"""


def values(runs: Sequence[Figures], name: str) -> list[float]:
    return [run[name] for run in runs]


def slower(way: Figures) -> list[float]:
    """The 99th percentile beside best effort over alone, by round."""
    pairs = zip(values(way["beside"], "p99_ms"), values(way["alone"], "p99_ms"), strict=True)
    return [beside / alone for beside, alone in pairs]


def left(data: Figures, name: str) -> float:
    """Requests a second that the device has time for beside real time alone."""
    return float(data["peak"]) * max(0.0, 1 - median(values(data["runs"][name]["alone"], "busy")))


def served(data: Figures, name: str) -> list[float]:
    """Best-effort answers over the capacity left, by round."""
    capacity = left(data, name)
    return [run["best_effort"]["per_s"] / capacity if capacity else 0.0 for run in data["runs"][name]["beside"]]


def missed(data: Figures) -> list[str]:
    """The targets that the default misses, whole or in stages, a line each."""
    lines = []
    for name in ("reef", "sliced"):
        ratio, part = median(slower(data["runs"][name])), median(served(data, name))
        if ratio > REALTIME:
            lines.append(f"{name}: real-time p99 {ratio:.2f} x alone, not {REALTIME:g}")
        if part < BEST_EFFORT:
            lines.append(f"{name}: best effort {part:.2f} of the capacity left, not {BEST_EFFORT:g}")
    return lines


def _spread(found: Sequence[float]) -> str:
    return f"{median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _latency(runs: Sequence[Figures]) -> str:
    return " / ".join(ms(median(values(runs, name))) for name in ("mean_ms", "p99_ms"))


def _row(data: Figures, name: str) -> list[str]:
    way = data["runs"][name]
    beside, alone = way["beside"], way["alone"]
    best_effort = [run["best_effort"] for run in beside]
    return [
        f"`{name}`", data["ways"][name], _latency(alone), _latency(beside), _spread(slower(way)),
        f"{median(values(alone, 'busy')):.0%}", f"{left(data, name):.0f}",
        f"{median(values(best_effort, 'per_s')):.0f}", _spread(served(data, name)),
    ]  # fmt: skip


def _details(data: Figures, name: str) -> list[str]:
    way = data["runs"][name]
    best_effort = [run["best_effort"] for run in way["beside"]]
    return [
        f"`{name}`", f"{median(values(data['peaks'][name], 'per_s')):.0f}",
        f"{median(values(data['peaks'][name], 'batch')):.1f}", f"{median(values(best_effort, 'batch')):.1f}",
        f"{median(values(way['alone'], 'batch')):.1f}", f"{median(values(way['beside'], 'batch')):.1f}",
        ms(median(values(way["alone"], "server_p99_ms"))), ms(median(values(way["beside"], "server_p99_ms"))),
        ms(max(values(way["beside"], "lag_p99_ms"))),
    ]  # fmt: skip


def write(data: Figures, folder: Path) -> list[str]:
    settings = {**data["settings"], "peak": data["peak"], "rate": data["rate"]}
    heads = (
        "", "what it is", "real time alone: mean / 99 %, ms", "beside best effort", "99 % over alone", "busy alone",
        "left, requests/s", "best effort/s", "of what is left",
    )  # fmt: skip
    details = (
        "", "best effort alone/s", "rows a batch", "beside real time", "rows a real-time batch: alone", "beside",
        "99 % in the server, ms: alone", "beside", "generator's lag, 99 %, ms",
    )  # fmt: skip
    faults = missed(data)
    parts = [
        HEAD.format(**settings), table(heads, [_row(data, name) for name in data["runs"]]), LEFT.format(**settings),
        f"Targets: 99 % at most {REALTIME:g} times alone, at least {BEST_EFFORT:g} of what is left. "
        f"Missed: {'; '.join(faults) or 'none'}.",
        "## Batches, and where the time goes", table(details, [_details(data, name) for name in data["runs"]]),
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "bulk.md")]
