"""The page that compares `adaptive` on models in stages with itself on the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Data, Page, grid

BOUND = 0.01  # of the whole model's mean latency

Cell = dict[str, Any]


def percent(cell: Cell) -> str:
    return f"{100 * cell['above']:+.2f} ± {100 * cell['above_error']:.2f} %"


def named(cell: Cell) -> str:
    return f"{percent(cell)} ({cell['case']}, load {cell['load']:g})"


def missed(data: Data) -> list[str]:
    return [
        f"{cell['case']}, load {cell['load']:g}: {percent(cell)}" for cell in data["cells"] if cell["above"] > BOUND
    ]


def fill(data: Data) -> Mapping[str, object]:
    at = {(cell["case"], cell["load"]): cell for cell in data["cells"]}
    cells = sorted(data["cells"], key=lambda cell: float(cell["above"]))
    loads = {load: f"{load:g}" for load in data["loads"]}
    return {
        "bound": BOUND,
        "worst": named(cells[-1]),
        "best": named(cells[0]),
        "distances": grid(
            "load", dict.fromkeys(case for case, _ in at), loads, lambda case, load: percent(at[case, load])
        ),
    }


PAGE = Page("sliced", __file__, fill, missed)
