"""The page that compares the policies with the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from loadtest.common import markdown
from loadtest.common.markdown import ms, table


class Cell(TypedDict):
    """One policy on one device at one load. `above`: its distance to the optimum, as a share of the optimum."""

    device: str
    load: float
    name: str
    optimum_ms: float
    mean_ms: float
    p99_ms: float
    cost_ms: float
    batch: float
    delay_ms: float | None  # the best of several that were tried
    overloaded: bool  # the queue grows without end
    optimum_off: float
    above: float
    above_error: float


class Device(TypedDict):
    """`source`: where its batch times are from. `times_ms`: of some sizes. `best`: the size with the most rows/s."""

    source: str
    times_ms: dict[str, float]
    peak: float
    best: int


class Scale(TypedDict):
    """Seeds, requests of each, and by which factor there are more at high load."""

    seeds: int
    requests: int
    more: int


class Policies(TypedDict):
    facts: dict[str, str]
    scale: Scale
    devices: dict[str, Device]
    cells: list[Cell]


NOTES = """\
Nearly all of the remaining distance of `adaptive` comes from the choice of its table: it knows the rate only by
counting requests, and tables are solved for a grid of loads. The first 3 s of each run, in which the rate monitor has
hardly one window, and the last 100 requests are left out. For curves that are lines there is little to gain over
`no_wait`; if three rows take longer than four (mlp and resnet18, measured), there is much. If `adaptive` seems better
than the optimum, the difference is less than the remaining noise.
"""

TARGETS = {"adaptive": 0.02, "adaptive, balanced": 0.05, "adaptive, energy": 0.05}
_FLOOR = 0.001  # of a distance in the plot

HEAD = """\
# Policies against the optimum

Simulated: one device that runs one batch at a time, Poisson arrivals, six loads as shares of the device's best rows/s.
The optimum is the exact least mean latency of any policy, from the semi-Markov decision process (docs/simulation.md).
Distances are those of the mean latency; for `adaptive` with `balanced` and `energy` they are those of the cost that
these minimise, mean latency + price x share of busy time. {seeds} seeds of {requests:,} requests, {more} times as many
from load 0.9 on. All policies get the same arrivals. The optimal policy is run on them as well, and the error of its
run is subtracted from the others. ± is the standard error over seeds.

`window`, `static` and `preferred` have the delay of 1, 2, 5, 10, 20 ms with the least mean latency in that cell, given
in brackets. "literal" is `preferred` without a bound on the wait. `ebird` has the workers (1, 1, 2, 4, 8, 16), whose
units take turns on the one device; it never runs more than 16 rows at once. "grows": the queue grows without end.
"""


def distance(cell: Cell) -> str:
    if cell["overloaded"]:
        return "grows"
    delay = "" if cell["delay_ms"] is None else f" ({cell['delay_ms']:g})"
    return f"{100 * cell['above']:+.1f} ± {100 * cell['above_error']:.1f} %{delay}"


def worst(cells: Sequence[Cell], name: str) -> Cell:
    return max((cell for cell in cells if cell["name"] == name), key=lambda cell: cell["above"])


def worsts(cells: Sequence[Cell]) -> str:
    """The worst cell of `adaptive` for each objective, and whether it meets its target."""
    rows = []
    for name, target in TARGETS.items():
        one = worst(cells, name)
        met = "yes" if one["above"] <= target else "NO"
        where = f"{one['device']}, load {one['load']:g}"
        rows.append([f"`{name}`", distance(one), where, f"{target:.0%}", met])
    return table(("", "worst distance", "where", "target", "met"), rows)


def device_table(cells: Sequence[Cell], device: str) -> str:
    ours = [cell for cell in cells if cell["device"] == device]
    loads = list(dict.fromkeys(cell["load"] for cell in ours))
    names = list(dict.fromkeys(cell["name"] for cell in ours))
    at = {(cell["name"], cell["load"]): cell for cell in ours}
    rows = [["optimum, ms", *(ms(at["adaptive", load]["optimum_ms"]) for load in loads)]]
    for name in names:
        rows.append([f"{name}, ms", *(ms(at[name, load]["mean_ms"]) for load in loads)])
        rows.append(["distance", *(distance(at[name, load]) for load in loads)])
    return table(("load", *(f"{load:g}" for load in loads)), rows)


def write(data: Policies, folder: Path) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    draw(data["cells"], folder / "policies.png")
    return ["policies.png", markdown.write(parts(data), folder / "policies.md")]


def parts(data: Policies) -> list[str]:
    cells = data["cells"]
    made = [
        HEAD.format(**data["scale"]), "## `adaptive`, worst of all cells",
        worsts(cells), NOTES, "![Distance to the optimum against load](policies.png)",
        "In the plot, distances below 0.1 % are drawn at 0.1 %, queues that grow without end are left out, and the "
        "dashed line is at 2 %.",
        "The runs of the optimal policy differed from the exact value by at most "
        f"{max(abs(cell['optimum_off']) for cell in cells):.1%}, which is the noise that is subtracted.",
    ]  # fmt: skip
    for name, device in data["devices"].items():
        one = worst([cell for cell in cells if cell["device"] == name], "adaptive")
        times = ", ".join(f"{size}: {time:.3g}" for size, time in device["times_ms"].items())
        made += [
            f"## {name}",
            f"{device['source']}; batch times in ms, {times}; {device['peak']:.1f} rows/s at best, in batches of "
            f"{device['best']}. Worst of `adaptive` under `latency`: {distance(one)} at load {one['load']:g}.",
            device_table(cells, name),
        ]
    return [*made, markdown.facts_list(data["facts"])]


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Plot the distance to the optimum against load: a panel per device, a line per policy."""
    from loadtest.common.plots import LOOKS, legend_above, plain_numbers, saved_grid

    devices = list(dict.fromkeys(cell["device"] for cell in cells))
    names = [name for name in dict.fromkeys(cell["name"] for cell in cells) if name in LOOKS]
    rows = -(-len(devices) // 3)
    size = (13, 3.2 * rows + 0.9)
    with saved_grid(path, rows, min(3, len(devices)), size, sharey=True) as (figure, grid):
        for axes, device in zip(grid.flat, devices, strict=False):
            for name in names:
                line = [c for c in cells if (c["device"], c["name"]) == (device, name) and not c["overloaded"]]
                colour, dash = LOOKS[name]
                axes.plot(
                    [c["load"] for c in line], [100 * max(_FLOOR, c["above"]) for c in line], f"o{dash}",
                    color=colour, label=name, zorder=3 if name == "adaptive" else 2,
                )  # fmt: skip
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
