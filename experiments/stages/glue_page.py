"""The page of `glue`: rows per second and latencies of a served encoder, by how batches are filled."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from loadtest.common.page import Data, Page, grid, ms, standard_error, table

CLOSED = 1.8  # of the rows per second by count, at least
HALF = 0.5  # of the mean by count at the highest load, at most
SIZES = ("1", "4", "8", "16", "32")


def gain(data: Data) -> float:
    """Rows per second by length over those of the better way by count."""
    return fmean(data["closed"]["by length"]["rows_per_s"]) / float(data["peak"])


def mean_ratio(cells: Mapping[str, Any]) -> float:
    """The mean latency by length over that by count."""
    return fmean(cells["by length"]["mean_ms"]) / fmean(cells["by count"]["mean_ms"])


def missed(data: Data) -> list[str]:
    lines = [] if gain(data) >= CLOSED else [f"closed loop: {gain(data):.2f} x, not {CLOSED:g} x"]
    for load, cells in data["loads"].items():
        ratio, tails = mean_ratio(cells), cells["by length"]["p99_ms"] / cells["by count"]["p99_ms"]
        if ratio >= 1 or tails >= 1:
            lines.append(f"load {load}: mean {ratio:.2f} x, 99 % {tails:.2f} x, not lower")
        if load == list(data["loads"])[-1] and ratio > HALF:
            lines.append(f"load {load}: mean {ratio:.2f} x, not {HALF:g} x")
    return lines


def fill(data: Data) -> Mapping[str, object]:
    closed_loop = {
        "": "{way}",
        "rows/s": lambda cell: f"{fmean(cell['rows_per_s']):.1f} ± {standard_error(cell['rows_per_s']):.1f}",
        "mean, ms": "{mean_ms:mean}",
        "99 %, ms": "{p99_ms:ms}",
        "rows a batch": "{batch:.1f}",
        "errors": "{errors}",
    }
    open_loop = {way: way for way in next(iter(data["loads"].values()))} | {"ratio": "mean, by length / by count"}
    times = data["profile"]["length_ms"]
    sizes = {size: f"{size} row{'s' * (size != '1')}" for size in SIZES if size in next(iter(times.values()))}

    def open_cell(load: str, way: str) -> str:
        cells = data["loads"][load]
        if way == "ratio":
            return f"{mean_ratio(cells):.2f} x"
        return f"{ms(fmean(cells[way]['mean_ms']))} / {ms(cells[way]['p99_ms'])}"

    return {
        "most": CLOSED,
        "half": HALF,
        "gain": gain(data),
        "closed_loop": table(closed_loop, ({"way": way, **cell} for way, cell in data["closed"].items())),
        "open_loop": grid("load", data["loads"], open_loop, open_cell),
        "batch_times": grid("tokens", times, sizes, lambda tokens, size: ms(times[tokens][size])),
    }


PAGE = Page("glue", __file__, fill, missed)
