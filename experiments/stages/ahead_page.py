"""The page of `ahead`: mean latencies of three ways to hand over a second unit."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from loadtest.common.page import Data, Page, standard_error, table

WITHIN = 0.03  # of the better of depth 1 and depth 2 at once

Cell = dict[str, Any]  # one curve at one load: mean latencies in ms by seed, under `depth_1`, `at_once` and `ahead`


def above(cell: Cell) -> list[float]:
    """By seed: mean latency within the time over the better of the other two, less one."""
    better = min((cell["depth_1"], cell["at_once"]), key=fmean)
    return [ahead / other - 1 for ahead, other in zip(cell["ahead"], better, strict=True)]


def missed(data: Data) -> list[str]:
    """The cells in which handing over within the time is too far above the better of the other two."""
    return [
        f"{cell['curve']}, load {cell['load']:g}: {fmean(above(cell)):+.1%}"
        for cell in data["cells"]
        if fmean(above(cell)) > WITHIN
    ]


def fill(data: Data) -> Mapping[str, object]:
    columns = {
        "batch times, ms": "{curve}",
        "load": "{load:g}",
        "rate/s": "{rate:.1f}",
        "depth 1": "{depth_1:mean}",
        "depth 2, at once": "{at_once:mean}",
        f"depth 2, within {data['settings']['ahead_ms']:g} ms": "{ahead:mean}",
        "against the better": lambda cell: f"{fmean(above(cell)):+.1%} ± {100 * standard_error(above(cell)):.1f}",
        "within": lambda cell: "yes" if fmean(above(cell)) <= WITHIN else "NO",
    }
    return {"within": WITHIN, "latencies": table(columns, data["cells"])}


PAGE = Page("ahead", __file__, fill, missed)
