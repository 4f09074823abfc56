"""The page of one replica under Ray Serve."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, filled, joined, spread, table

LOADS = {
    "one": ("One request after another", "What a request takes when nothing else is there."),
    "many": ("{connections} connections, each with a request in flight", "What is answered at most."),
    "open": ("At random, {share:g} of what the slowest answers at most", "The same rate for all: {rates}."),
}


def over(row: Mapping[str, Any], name: str) -> str:
    """The median against that of the server alone, round by round."""
    pairs = zip(row["runs"], row["alone"], strict=True)
    return f"{median(one[name] / other[name] for one, other in pairs):.3g}" if row["way"] != "alone" else ""


def section(data: Data, load: str) -> str:
    def column(name: str, form: str) -> Column:
        return lambda row: spread([run[name] for run in row["runs"]], form)

    busy = load == "many"
    columns: dict[str, Column] = {
        "model": "`{model}`",
        "served by": lambda row: data["ways"][row["way"]],
        "requests/s": column("per_s", ",.0f"),
        "50 %, ms": column("p50_ms", "ms"),
        "99 %, ms": column("p99_ms", "ms"),
        "requests/s over alone" if busy else "50 % over alone": lambda row: over(row, "per_s" if busy else "p50_ms"),
    }
    rows = (
        {"model": model, "way": way, "runs": runs, "alone": of_load[load]["alone"]}
        for model, of_load in data["runs"].items()
        for way, runs in of_load[load].items()
    )
    rates = ", ".join(f"`{model}` {rate:,.0f}/s" for model, rate in data["rates"].items())
    title, text = (filled(part, **data["settings"], rates=rates) for part in LOADS[load])
    return joined([f"## {title}", text, table(columns, rows)])


def fill(data: Data) -> Mapping[str, object]:
    optimized = " (RAY_SERVE_THROUGHPUT_OPTIMIZED=1)" if data["settings"]["optimized"] else ""
    return {"version": f"{data['ray']}{optimized}", "loads": joined(section(data, load) for load in LOADS)}


PAGE = Page("ray-serve", __file__, fill)
