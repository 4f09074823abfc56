"""The page that compares `adaptive` on models in stages with itself on the whole model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import table

BOUND = 0.01  # of the whole model's mean latency

HEAD = """\
# `adaptive` on stages against the whole model

Simulated: one device that runs one unit at a time, Poisson arrivals, the same for both; cuts cost nothing. The rate is
a share of the best rows/s of the whole model, whose times are the sums of its stages'. {seeds} seeds of {requests:,}
requests. Shown is by how much the mean latency on stages is above that of the whole model, ± the standard error.

"of equal time": each stage takes the same share of every batch. "as measured": shares that differ from stage to stage
and with the size, and an error of 5 % for each size and stage, as `starling slice` finds them. "of DVABatch's shape":
the networks of [stages](stages.md), for rows of one length.
"""

FOUND = """\
Worst: {worst} ({case}, load {load:g}); the bound is 1 %, which {met}. Best: {best} ({best_case}, load {best_load:g}).
"""


def percent(cell: Mapping[str, Any]) -> str:
    return f"{100 * cell['above']:+.2f} ± {100 * cell['above_error']:.2f} %"


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    cells, loads = data["cells"], data["loads"]
    worst, best = max(cells, key=lambda one: one["above"]), min(cells, key=lambda one: one["above"])
    over = sum(cell["above"] > BOUND for cell in cells)
    met = "all cells keep" if not over else f"{over} of {len(cells)} cells break"
    rows = [
        [case, *(percent(one) for one in cells if one["case"] == case)]
        for case in dict.fromkeys(one["case"] for one in cells)
    ]
    told = FOUND.format(
        worst=percent(worst), case=worst["case"], load=worst["load"], met=met,
        best=percent(best), best_case=best["case"], best_load=best["load"],
    )  # fmt: skip
    parts = [
        HEAD.format(**data), told, table(("load", *(f"{load:g}" for load in loads)), rows),
        markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "sliced.md")]
