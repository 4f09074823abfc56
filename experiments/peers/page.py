"""docs/bench/peers.md from stored figures."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common import markdown

#: Fewer answers in time than this share of the requests: the queue grew for as long as the load lasted.
_KEPT = 0.97


def write(data: dict[str, Any], folder: Path) -> list[str]:
    settings, capacity = data["settings"], data["capacity"]
    parts = [
        "# Starling and the servers that people use today",
        f"The `mlp` of this repository (25 M weights) on one compute thread behind each server, one row a request: "
        f"1,024 numbers as JSON, 1,000 come back. Batches have up to {settings['largest']} rows where the server has "
        f"batches. The bare model does {capacity:.0f} rows/s in batches of {settings['largest']}; the rates are shares "
        f"of that. Medians of {settings['rounds']} rounds of {settings['seconds']:g} s, least and most in brackets; "
        "within a round the servers take turns. Client and server share the machine's cores. Latencies are from the "
        "intended instant to the last byte. Where a server lets its user say how long a batch waits for more rows, "
        "each wait stands in a row of its own. Every server's answers were compared.",
        markdown.table(["server", *headings(data)], rows_of(data)),
        "A dash: the server answers less than 97 % of the load in time, so that its queue, and with it every latency, "
        "grows for as long as the load lasts.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in data["versions"].items()) + ".",
        markdown.facts_list(data["facts"]),
    ]
    return [markdown.write(parts, folder / "peers.md")]


def headings(data: dict[str, Any]) -> list[str]:
    found = [f"requests/s, {data['settings']['connections']} connections"]
    for share in data["shares"]:
        rate = f"{share:.0%} ({share * data['capacity']:.0f}/s)"
        found += [f"{rate}: mean, ms", "p99, ms"]
    return found


def rows_of(data: dict[str, Any]) -> list[list[str]]:
    found = []
    for name, loads in data["runs"].items():
        cells = [spread([run["per_s"] for run in loads["closed"]], "{:,.0f}".format)]
        for share in data["shares"]:
            runs = loads[f"{share * data['capacity']:.0f}"]
            kept = median(run["per_s"] * data["settings"]["seconds"] / run["requests"] for run in runs) >= _KEPT
            figures = ([run[figure] for run in runs] for figure in ("mean_ms", "p99_ms"))
            cells += [spread(values, markdown.ms) if kept else "-" for values in figures]
        found.append([name, *cells])
    return found


def spread(values: list[Any], text: Any) -> str:
    return f"{text(median(values))} ({text(min(values))} to {text(max(values))})"
