"""The page that compares the policies with the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.scheduler.optimal.serve_all import bound_ns
from loadtest.common.page import Column, Data, Page, joined, lines_table, ms, table

#: One policy on one device at one load. `above`: its distance to the optimum, as a share of the optimum; `delay_ms`:
#: the best of several that were tried; `overloaded`: the queue grows without end.
Cell = Mapping[str, Any]

TARGETS = {"adaptive": 0.02, "adaptive, balanced": 0.05, "adaptive, energy": 0.05}
_FLOOR = 0.001  # of a distance in the plot


def distance(cell: Cell) -> str:
    if cell["overloaded"]:
        return "grows"
    delay = "" if cell["delay_ms"] is None else f" ({cell['delay_ms']:g})"
    return f"{100 * cell['above']:+.1f} ± {100 * cell['above_error']:.1f} %{delay}"


def worst(cells: Sequence[Cell], name: str) -> Cell:
    return max((cell for cell in cells if cell["name"] == name), key=lambda cell: float(cell["above"]))


def missed(data: Data) -> list[str]:
    cells = [worst(data["cells"], name) for name in TARGETS]
    return [
        f"{cell['name']}: {distance(cell)} on {cell['device']} at load {cell['load']:g}"
        for cell in cells
        if cell["above"] > TARGETS[cell["name"]]
    ]


WORST: dict[str, Column] = {
    "": "`{name}`",
    "worst distance": distance,
    "where": "{device}, load {load:g}",
    "target": lambda cell: f"{TARGETS[cell['name']]:.0%}",
    "met": lambda cell: "yes" if cell["above"] <= TARGETS[cell["name"]] else "NO",
}


def bound(device: Mapping[str, Any], load: float) -> str:
    """Of running all that waits in batches of any size, with times between those shown on straight lines."""
    shown = {int(size): time for size, time in device["times_ms"].items()}
    times = np.interp(range(1, max(shown) + 1), list(shown), list(shown.values()))
    found = bound_ns([round(time * 1e6) for time in times], load * device["peak"])
    return "-" if found is None else ms(found / 1e6)


def section(name: str, device: Mapping[str, Any], cells: Sequence[Cell]) -> str:
    at = {(cell["name"], cell["load"]): cell for cell in cells if cell["device"] == name}
    loads = list(dict.fromkeys(load for _, load in at))
    rows = [["optimum, ms", *(ms(at["adaptive", load]["optimum_ms"]) for load in loads)]]
    rows.append(["run all, at most, ms", *(bound(device, load) for load in loads)])
    for policy in dict.fromkeys(policy for policy, _ in at):
        rows.append([f"{policy}, ms", *(ms(at[policy, load]["mean_ms"]) for load in loads)])
        rows.append(["distance", *(distance(at[policy, load]) for load in loads)])
    one = worst(list(at.values()), "adaptive")
    times = ", ".join(f"{size}: {time:.3g}" for size, time in device["times_ms"].items())
    text = (
        f"{device['source']}; batch times in ms, {times}; {device['peak']:.1f} rows/s at best, in batches of "
        f"{device['best']}. Worst of `adaptive` under `latency`: {distance(one)} at load {one['load']:g}."
    )
    return joined([f"## {name}", text, lines_table(["load", *(f"{load:g}" for load in loads)], rows)])


def fill(data: Data) -> Mapping[str, object]:
    cells = data["cells"]
    return {
        "worsts": table(WORST, [worst(cells, name) for name in TARGETS]),
        "optimum_off": max(abs(cell["optimum_off"]) for cell in cells),
        "sections": joined(section(name, device, cells) for name, device in data["devices"].items()),
    }


def draw(data: Data, folder: Path) -> None:
    """Plot the distance to the optimum against load: a panel per device, a line per policy."""
    from loadtest.common.plots import LOOKS, legend_above, plain_numbers, saved_grid

    cells = data["cells"]
    devices = list(dict.fromkeys(cell["device"] for cell in cells))
    names = [name for name in dict.fromkeys(cell["name"] for cell in cells) if name in LOOKS]
    rows = -(-len(devices) // 3)
    size = (13, 3.2 * rows + 0.9)
    with saved_grid(folder / "policies.png", rows, min(3, len(devices)), size, sharey=True) as (figure, grid):
        for axes, device in zip(grid.flat, devices, strict=False):
            for name in names:
                line = [c for c in cells if (c["device"], c["name"]) == (device, name) and not c["overloaded"]]
                loads, above = [c["load"] for c in line], [100 * max(_FLOOR, c["above"]) for c in line]
                colour, dash = LOOKS[name]
                in_front = 3 if name == "adaptive" else 2
                axes.plot(loads, above, f"o{dash}", color=colour, label=name, zorder=in_front)
            axes.axhline(100 * TARGETS["adaptive"], color="grey", linestyle="--", linewidth=1)
            axes.set_yscale("log")
            plain_numbers(axes.yaxis)
            axes.set_title(device, fontsize=11)
            axes.set_xlabel("load, share of the best throughput")
            axes.set_xlim(0, 1)
        for axes in grid[:, 0]:
            axes.set_ylabel("mean latency above\nthe optimum, %")
        legend_above(figure, grid)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.4 / (3.2 * rows)))


PAGE = Page("policies", __file__, fill, missed, draw)
