"""The page of bulk work beside interactive requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, ms, spread, table

Figures = Mapping[str, Any]

REALTIME, BEST_EFFORT = 1.3, 0.85  # of p99 alone, at most; of the capacity left, at least


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


def missed(data: Data) -> list[str]:
    """The targets that the default misses, whole or in stages."""
    lines = []
    for name in ("reef", "sliced"):
        ratio, part = median(slower(data["runs"][name])), median(served(data, name))
        if ratio > REALTIME:
            lines.append(f"{name}: real-time p99 {ratio:.2f} x alone, not {REALTIME:g}")
        if part < BEST_EFFORT:
            lines.append(f"{name}: best effort {part:.2f} of the capacity left, not {BEST_EFFORT:g}")
    return lines


def fill(data: Data) -> Mapping[str, object]:
    def middle(name: str, case: str, figure: str) -> float:
        return median(values(data["runs"][name][case], figure))

    def best_effort(name: str, figure: str) -> float:
        return median(run["best_effort"][figure] for run in data["runs"][name]["beside"])

    def latency(name: str, case: str) -> str:
        return f"{ms(middle(name, case, 'mean_ms'))} / {ms(middle(name, case, 'p99_ms'))}"

    latencies: dict[str, Column] = {
        "": lambda name: f"`{name}`",
        "what it is": lambda name: data["ways"][name],
        "real time alone: mean / 99 %, ms": lambda name: latency(name, "alone"),
        "beside best effort": lambda name: latency(name, "beside"),
        "99 % over alone": lambda name: spread(slower(data["runs"][name]), ".2f"),
        "busy alone": lambda name: f"{middle(name, 'alone', 'busy'):.0%}",
        "left, requests/s": lambda name: f"{left(data, name):.0f}",
        "best effort/s": lambda name: f"{best_effort(name, 'per_s'):.0f}",
        "of what is left": lambda name: spread(served(data, name), ".2f"),
    }
    batches: dict[str, Column] = {
        "": lambda name: f"`{name}`",
        "best effort alone/s": lambda name: f"{median(values(data['peaks'][name], 'per_s')):.0f}",
        "rows a batch": lambda name: f"{median(values(data['peaks'][name], 'batch')):.1f}",
        "beside real time": lambda name: f"{best_effort(name, 'batch'):.1f}",
        "rows a real-time batch: alone": lambda name: f"{middle(name, 'alone', 'batch'):.1f}",
        "rows a real-time batch: beside": lambda name: f"{middle(name, 'beside', 'batch'):.1f}",
        "99 % in the server, ms: alone": lambda name: ms(middle(name, "alone", "server_p99_ms")),
        "99 % in the server, ms: beside": lambda name: ms(middle(name, "beside", "server_p99_ms")),
        "generator's lag, 99 %, ms": lambda name: ms(max(values(data["runs"][name]["beside"], "lag_p99_ms"))),
    }
    return {
        "realtime": REALTIME,
        "best_effort": BEST_EFFORT,
        "latencies": table(latencies, data["runs"]),
        "batches": table(batches, data["runs"]),
    }


PAGE = Page("bulk", __file__, fill, missed)
