"""The page of LoadGen's scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Column, Data, Page, table


def samples_per_second(found: Mapping[str, Any]) -> float:
    """Of any scenario: each has a name of its own for it, and MultiStream says how long a query takes."""
    for name in ("Samples per second", "Completed samples per second", "QPS w/ loadgen overhead"):
        if name in found:
            return float(found[name])
    return float(found["samples_per_query"]) * 1e9 / float(found["Mean latency (ns)"])


def _latency(percentile: str) -> Column:
    return lambda one: f"{one[2][f'{percentile} percentile latency (ns)'] / 1e6:.2f}"


COLUMNS: dict[str, Column] = {
    "model": lambda one: f"`{one[0]}`",
    "scenario": lambda one: one[1],
    "result": lambda one: str(one[2]["Result is"]).lower(),
    "samples/s": lambda one: f"{samples_per_second(one[2]):,.0f}",
    "requests": lambda one: f"{one[2]['requests']:,}",
    "p50, ms": _latency("50.00"),
    "p90, ms": _latency("90.00"),
    "p99, ms": _latency("99.00"),
}


def runs(data: Data) -> list[tuple[str, str, dict[str, Any]]]:
    return [(model, name, found) for model, scenarios in data["models"].items() for name, found in scenarios.items()]


def missed(data: Data) -> list[str]:
    """Runs that LoadGen calls invalid."""
    return [f"{model}, {name}: invalid" for model, name, found in runs(data) if found["Result is"] != "VALID"]


def fill(data: Data) -> Mapping[str, object]:
    return {"table": table(COLUMNS, runs(data))}


PAGE = Page("loadgen", __file__, fill, missed)
