"""The page of `writing`: decoders by steps against whole batches."""

from __future__ import annotations

from statistics import median

from loadtest.common.page import Column, Data, Page, joined, table

CELLS = "steps"  # the model that is served step by step
#: Times the rows a second of the best whole batch; of one at a time; of its p50, whole texts and first pieces.
FASTER, THAN_ALONE, P50, FIRST = 2.0, 5.0, 0.65, 0.3
AT = 0.7  # share of that peak


def ratios(found: Data) -> tuple[float, float]:
    """Rows a second over those of the best whole model and of one at a time."""
    rates = {name: median(values) for name, values in found["rates"].items()}
    return rates[CELLS] / rates[found["best"]], rates[CELLS] / rates[found["alone"]]


def medians(found: Data) -> dict[str, float]:
    """By what is measured (`steps`, `first`): its p50 over that of whole texts of the best model, at `AT`."""
    load = next((load for load in found["loads"] if load["share"] == AT), {})
    return {name: load[name]["p50_ms"] / load["whole"]["p50_ms"] for name in ("steps", "first") if name in load}


def missed(data: Data) -> list[str]:
    lines = []
    for kind, found in data["kinds"].items():
        faster, than_alone = ratios(found)
        if faster < FASTER:
            lines.append(f"{kind}: {faster:.2f} x the rows a second of {found['best']}, target {FASTER:g}")
        if than_alone < THAN_ALONE:
            lines.append(f"{kind}: {than_alone:.2f} x the rows a second of one at a time, target {THAN_ALONE:g}")
        shares, where = medians(found), f"of {found['best']} at {AT:g} of its peak"
        if (share := shares.get("steps", 0.0)) > P50:
            lines.append(f"{kind}: p50 {share:.2f} x that {where}, target {P50:g}")
        if (share := shares.get("first", 0.0)) > FIRST:
            lines.append(f"{kind}: p50 to the first piece {share:.2f} x that {where}, target {FIRST:g}")
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
        "by steps, p50, p99 ms": lambda load: _both(load, "steps"),
        "first piece, p50, p99 ms": lambda load: _both(load, "first"),
        "whole, p50, p99 ms": lambda load: _both(load, "whole"),
    }
    rates = [{"name": name, "rates": values} for name, values in found["rates"].items()]
    faster, than_alone = ratios(found)
    told = f"By steps {faster:.2f} x the rows/s of the best whole model, {than_alone:.2f} x those of one at a time."
    named = {"steps": "of whole texts", "first": "to the first piece"}
    shares = [f"{share:.2f} x {named[name]}" for name, share in medians(found).items()]
    if shares:
        told += f" p50 at {AT:g} of its peak: {', '.join(shares)}."
    return joined([f"## {kind}", table(rows, rates), told, table(latencies, found["loads"])])


def _both(load: Data, name: str) -> str:
    return f"{load[name]['p50_ms']:.0f}, {load[name]['p99_ms']:.0f}" if name in load else "not measured"


PAGE = Page(
    "writing",
    __file__,
    fill=lambda data: {"sections": joined([section(kind, found) for kind, found in data["kinds"].items()])},
    missed=missed,
)
