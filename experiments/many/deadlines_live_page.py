"""The page of `deadlines_live`: share in time and device time over HTTP, by policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Column, Data, Page, table

SHARE = 0.99  # in time, at up to this load:
MODERATE = 0.6

Figures = Mapping[str, Any]


def saved(cell: Figures) -> float:
    return float(1 - cell["ways"]["deadline"]["row_ms"] / cell["ways"]["all that waits"]["row_ms"])


def missed(data: Data) -> list[str]:
    lines = []
    for cell in data["cells"]:
        ways, name = cell["ways"], f"{cell['workers']} workers, load {cell['load']:g}"
        timely = ways["deadline"]["in_time"]
        if cell["load"] <= MODERATE and timely < SHARE:
            lines.append(f"{name}: {timely:.2%} in time")
        if saved(cell) <= 0:
            lines.append(f"{name}: {saved(cell):.0%} device time saved")
    return lines


def way(name: str) -> Column:
    def cell(found: Figures) -> str:
        own = found["ways"][name]
        return f"{own['in_time']:.2%} / {own['row_ms']:.2f} / {own['batch']:.1f}"

    return cell


CELLS: dict[str, Column] = {
    "workers": "{workers}",
    "load": lambda cell: f"{cell['load']:g} of {cell['bound']:,.0f}/s",
    "`deadline`": way("deadline"),
    "all that waits": way("all that waits"),
    "`window`": way("window"),
    "saved": lambda cell: f"{saved(cell):.0%}",
    "lag, ms": lambda cell: f"{max(own['lag_ms'] for own in cell['ways'].values()):.1f}",
}


def fill(data: Data) -> Mapping[str, object]:
    return {"table": table(CELLS, data["cells"])}


PAGE = Page("many-deadlines-live", __file__, fill, missed)
