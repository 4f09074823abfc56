"""The tables of `workers` and `several`: two, four and eight workers of one model, policies against the optimum."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from loadtest.common.page import Column, Data, standard_error, table

TWO, MORE = 0.02, 0.05  # `adaptive` is to be so near to the optimum, with two workers and with more

#: One device at one load: mean latencies in ms by policy and seed. `factor`: of two workers, how much each slows the
#: other; `workers`: how many more there are.
Cell = Mapping[str, Any]


def above(cell: Cell, policy: str) -> list[float]:
    """By seed: the distance to the optimum's policy on the same arrivals, as a share."""
    return [one / best - 1 for one, best in zip(cell[policy], cell["optimum"], strict=True)]


def shown(policy: str) -> Column:
    def text(cell: Cell) -> str:
        distances = above(cell, policy)
        error = f" ± {100 * standard_error(distances):.1f}" if len(distances) > 1 else ""
        delay = f" ({cell['delay_ms']:g})" if policy == "window" else ""
        return f"{100 * fmean(distances):+.1f}{error} %{delay}"

    return text


def missed(data: Data) -> list[str]:
    lines = []
    for cell in data["cells"]:
        distance = fmean(above(cell, "adaptive"))
        what = f"x {cell['factor']:g}" if "factor" in cell else f"{cell['workers']} workers"
        if distance > (TWO if "factor" in cell else MORE):
            lines.append(f"{cell['device']}, {what}, load {cell['load']:g}: {distance:+.1%}")
    return lines


def untold(cell: Cell) -> str:
    """Of `adaptive`, learnt over told how much two slow each other."""
    return f"{100 * (cell['untold'][0] / cell['untold'][1] - 1):+.1f} %" if cell["untold"] else ""


POLICIES: dict[str, Column] = {
    "optimum, ms": "{computed_ms:.2f}",
    "simulated": "{optimum:mean}",
    "`adaptive`": shown("adaptive"),
    "`no_wait`": shown("no_wait"),
}
OF_TWO: dict[str, Column] = {
    "device": "{device}", "beside another": "x {factor:g}", "load": "{load:g}", **POLICIES, "`window`": shown("window"),
    "learns it": untold,
}  # fmt: skip
OF_MORE: dict[str, Column] = {
    "device": "{device}", "workers": "{workers}", "largest batch": "{largest}", "load": "{load:g}", **POLICIES,
}  # fmt: skip


def fill(data: Data) -> Mapping[str, object]:
    cells = data["cells"]
    worst = max(fmean(above(cell, "adaptive")) for cell in cells)
    two = "factor" in cells[0]
    return {"target": TWO if two else MORE, "worst": worst, "table": table(OF_TWO if two else OF_MORE, cells)}
