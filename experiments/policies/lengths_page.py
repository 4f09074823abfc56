"""The page of `lengths`: what picking rows by length brings, against filling by count, and how far the best is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Column, Data, Page, grid, joined, ms, table

LOST_MS = 2_000.0  # a mean beyond it: more comes than is served
CLOSED = 1.8  # of the rows per second by count, at least
NEAR = 1.01  # of the mean by count, at most, whatever the load
HALF = 0.5  # of the mean by count at 90 %, at most
#: For which the targets of more rows and lower latencies are meant.
TARGET = "encoder"

Figures = Mapping[str, Any]


def gain(found: Figures) -> float:
    """Rows a second by length over those by count, in the closed loop."""
    return float(found["closed"]["by length"] / found["closed"]["by count"])


def ratio(cells: Figures, figure: str = "mean_ms") -> float | None:
    """By length over by count; None where either is overloaded."""
    ours, count = cells["by length"], cells["by count"]
    return None if ours is None or count is None else ours[figure] / count[figure]


def missed(data: Data) -> list[str]:
    lines = []
    for found in data["studies"]:
        name = found["device"]
        if name == TARGET and gain(found) < CLOSED:
            lines.append(f"{name}, closed loop: {gain(found):.2f} x")
        for load, cells in found["loads"].items():
            mean, p99 = ratio(cells), ratio(cells, "p99_ms")
            if mean is None or p99 is None:
                continue
            if mean > NEAR:
                lines.append(f"{name}, load {load}: mean {mean:.3f} x")
            if name == TARGET and float(load) < 1 and max(mean, p99) >= 1:
                lines.append(f"{name}, load {load}: mean {mean:.3f} x, 99 % {p99:.3f} x, not lower")
            if name == TARGET and load == "0.9" and mean > HALF:
                lines.append(f"{name}, load {load}: mean {mean:.2f} x, not {HALF:g} x")
    return lines


def windows(found: Figures) -> str:
    known = found.get("windows")
    if not known:
        return ""
    best = max(known, key=lambda size: known[size])
    return f"{known[best]:.0f} (size {best})"


def latencies(found: Figures) -> str:
    """The section of one device."""

    def cell(load: str, way: str) -> str:
        cells = found["loads"][load]
        if way == "mean":
            over = ratio(cells)
            return f"{over:.2f} x" if over else ""
        return "-" if cells[way] is None else f"{ms(cells[way]['mean_ms'])} / {ms(cells[way]['p99_ms'])}"

    ways = [*next(iter(found["loads"].values())), "mean"]
    heading = f"### {found['device']}, lengths `{found['lengths']}`, 1 is {found['peak']:.0f}/s"
    return joined([heading, grid("load", found["loads"], dict(zip(ways, ways, strict=True)), cell)])


def fill(data: Data) -> Mapping[str, object]:
    studies = data["studies"]
    closed: dict[str, Column] = {"": "{device}"}
    closed |= {way: f"{{closed[{way}]:.0f}}" for way in studies[0]["closed"]}
    closed |= {"by length / by count": lambda found: f"{gain(found):.2f} x", "windows": windows}
    few: dict[str, Column] = {
        "": "{device}",
        "rows": "{rows}",
        "by count": "{by count:.3f}",
        "by length": "{by length:.3f}",
    }
    return {
        "saturated": table(closed, studies),
        "open": joined(map(latencies, studies)),
        "small": table(few, ({**found, **case} for found in studies for case in found.get("few", ()))),
        "closed": CLOSED,
        "near": NEAR,
        "half": HALF,
        "target": TARGET,
    }


PAGE = Page("lengths", __file__, fill, missed)
