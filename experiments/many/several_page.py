"""The page of `several`: four and eight workers of one model against the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Data, Page, table

TARGET = 0.05

Cell = Mapping[str, Any]  # one device at one load: mean latencies in ms by policy


def above(cell: Cell, policy: str) -> float:
    return float(cell[policy] / cell["optimum"] - 1)


def missed(data: Data) -> list[str]:
    return [
        f"{cell['device']}, {cell['workers']} workers, load {cell['load']:g}: {above(cell, 'adaptive'):+.1%}"
        for cell in data["cells"]
        if above(cell, "adaptive") > TARGET
    ]


def fill(data: Data) -> Mapping[str, object]:
    columns = {
        "device": "{device}",
        "workers": "{workers}",
        "largest batch": "{largest}",
        "load": "{load:g}",
        "optimum, ms": "{computed:.2f}",
        "simulated": "{optimum:.2f}",
        "`adaptive`": lambda cell: f"{100 * above(cell, 'adaptive'):+.1f} %",
        "`no_wait`": lambda cell: f"{100 * above(cell, 'no_wait'):+.1f} %",
    }
    worst = max(above(cell, "adaptive") for cell in data["cells"])
    return {"target": TARGET, "worst": worst, "cells_table": table(columns, data["cells"])}


PAGE = Page("many-several", __file__, fill, missed)
