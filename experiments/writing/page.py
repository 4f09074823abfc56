"""The page of `writing`: decoders by steps against whole batches."""

from __future__ import annotations

from statistics import median

from loadtest.common.page import Column, Data, Page, joined, table

CELLS = "steps"  # the model that is served step by step
#: Times the rows a second of the best whole batch; of one at a time; of its p50.
FASTER, THAN_ALONE, P50 = 2.0, 5.0, 0.65
AT = 0.7  # share of that peak


def ratios(found: Data) -> tuple[float, float, float]:
    """Rows a second over those of the best whole model and of one at a time; p50 over that of the best."""
    rates = {name: median(values) for name, values in found["rates"].items()}
    load = next((load for load in found["loads"] if load["share"] == AT), None)
    p50 = load["steps"]["p50_ms"] / load["whole"]["p50_ms"] if load else 0.0
    return rates[CELLS] / rates[found["best"]], rates[CELLS] / rates[found["alone"]], p50


def missed(data: Data) -> list[str]:
    lines = []
    for kind, found in data["kinds"].items():
        faster, than_alone, p50 = ratios(found)
        if faster < FASTER:
            lines.append(f"{kind}: {faster:.2f} x the rows a second of {found['best']}, target {FASTER:g}")
        if than_alone < THAN_ALONE:
            lines.append(f"{kind}: {than_alone:.2f} x the rows a second of one at a time, target {THAN_ALONE:g}")
        if p50 > P50:
            lines.append(f"{kind}: p50 {p50:.2f} x that of {found['best']} at {AT:g} of its peak, target {P50:g}")
    return lines


def section(kind: str, found: Data) -> str:
    rows: dict[str, Column] = {
        "model": "{name}",
        "rows/s": lambda row: f"{median(row['rates']):.2f}",
        "of each round": lambda row: ", ".join(f"{rate:.2f}" for rate in row["rates"]),
    }
    latencies: dict[str, Column] = {
        "of the best whole model's rate": "{share:g}",
        "rows/s": "{rate:.1f}",
        "by steps, p50, p99 ms": lambda load: f"{load['steps']['p50_ms']:.0f}, {load['steps']['p99_ms']:.0f}",
        "whole, p50, p99 ms": lambda load: f"{load['whole']['p50_ms']:.0f}, {load['whole']['p99_ms']:.0f}",
    }
    rates = [{"name": name, "rates": values} for name, values in found["rates"].items()]
    faster, than_alone, p50 = ratios(found)
    told = f"By steps {faster:.2f} x the best whole model and {than_alone:.2f} x one row at a time; p50 {p50:.2f} x."
    return joined([f"## {kind}", table(rows, rates), told, table(latencies, found["loads"])])


PAGE = Page(
    "writing",
    __file__,
    fill=lambda data: {"sections": joined([section(kind, found) for kind, found in data["kinds"].items()])},
    missed=missed,
)
