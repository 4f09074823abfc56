"""The page of `workers`: policies on two workers of one model against the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from loadtest.common.page import Data, Page, standard_error, table

TARGET = 0.02

Cell = Mapping[str, Any]  # one device at one load: mean latencies in ms by seed and policy


def above(cell: Cell, policy: str) -> list[float]:
    """By seed: the distance to the optimum's policy on the same arrivals, as a share."""
    return [one / best - 1 for one, best in zip(cell[policy], cell["optimum"], strict=True)]


def shown(policy: str) -> Any:
    def text(cell: Cell) -> str:
        distances = above(cell, policy)
        error = f" ± {100 * standard_error(distances):.1f}" if len(distances) > 1 else ""
        return f"{100 * fmean(distances):+.1f}{error} %"

    return text


def missed(data: Data) -> list[str]:
    return [
        f"{cell['device']}, x {cell['factor']:g}, load {cell['load']:g}: {fmean(above(cell, 'adaptive')):+.1%}"
        for cell in data["cells"]
        if fmean(above(cell, "adaptive")) > TARGET
    ]


def fill(data: Data) -> Mapping[str, object]:
    columns = {
        "device": "{device}",
        "beside another": "x {factor:g}",
        "load": "{load:g}",
        "optimum, ms": "{optimum_ms:.2f}",
        "simulated": "{optimum:mean}",
        "`adaptive`": shown("adaptive"),
        "`no_wait`": shown("no_wait"),
        "`window`": lambda cell: f"{shown('window')(cell)} ({cell['delay_ms']:g})",
    }
    worst = max(fmean(above(cell, "adaptive")) for cell in data["cells"])
    return {"target": TARGET, "worst": worst, "cells_table": table(columns, data["cells"])}


PAGE = Page("many-workers", __file__, fill, missed)
