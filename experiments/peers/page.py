"""The page of Starling beside the servers that people use today."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, spread, table

#: Fewer answers in time than this share of the requests: the queue grew for as long as the load lasted.
_KEPT = 0.97


def columns(data: Data) -> dict[str, Column]:
    settings = data["settings"]

    def at(rate: str, figure: str) -> Column:
        def text(row: Mapping[str, Any]) -> str:
            runs = row["loads"][rate]
            kept = median(run["per_s"] * settings["seconds"] / run["requests"] for run in runs) >= _KEPT
            return spread([run[figure] for run in runs]) if kept else "-"

        return text

    found: dict[str, Column] = {
        "server": "{name}",
        f"requests/s, {settings['connections']} connections": lambda row: spread(
            [run["per_s"] for run in row["loads"]["closed"]], ",.0f"
        ),
    }
    for share in data["shares"]:
        rate = f"{share * data['capacity']:.0f}"
        found[f"{share:.0%} ({rate}/s): mean, ms"] = at(rate, "mean_ms")
        found[f"{share:.0%}: p99, ms"] = at(rate, "p99_ms")
    return found


def fill(data: Data) -> Mapping[str, object]:
    rows = ({"name": name, "loads": loads} for name, loads in data["runs"].items())
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return {"servers": table(columns(data), rows), "versions_text": versions}


PAGE = Page("peers", __file__, fill)
