"""Several workers, several models: `python -m experiments.many [SECTION ...]`.

Hours in all. A section that is made again replaces the earlier one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from experiments.common.sections import in_sections
from experiments.many import models, workers
from experiments.many.models import above, gain, gained, mean, risen, rises, worst_error
from experiments.many.workers import above as above_optimum
from experiments.many.workers import worst
from loadtest.common.experiment import Data, Say
from loadtest.common.page import Page, missed_list

#: What is imported for the text of the page alone.
__all__ = ["above", "gained", "mean", "risen", "rises", "worst", "worst_error"]

TWO, WITHIN, RISE = workers.TWO, models.WITHIN, models.RISE


class Part(NamedTuple):
    """A section of the page: what measures it, and the targets that its figures miss."""

    title: str
    measure: Callable[[Say], Data]
    missed: Callable[[Data], Sequence[str]]


#: By their names in the figures and on the command line, in the order in which they are measured.
PARTS = {
    "workers": Part("two workers", workers.measure, workers.missed),
    "models": Part("several models", models.measure, models.missed),
}


def missed(data: Data) -> list[str]:
    return [f"{part.title}: {line}" for name, part in PARTS.items() for line in part.missed(data[name])]


def missed_of(data: Data, name: str) -> str:
    return missed_list(PARTS[name].missed(data[name]))


_PLOTTED = (("mlp", 1.0), ("resnet18", 1.0), ("7 + 0.6 b", 1.3))  # devices of two workers
#: Colour and dash of a policy.
_LOOKS = {"no_wait": ("C2", "-"), "window": ("C0", "-"), "adaptive": ("k", "-")}
_COLOURS = {"index": "k", "optimum": "C7"}
_FLOOR = 0.0005  # of a distance to the optimum, on a logarithmic axis


def draw(data: Data, folder: Path) -> None:
    """Above: two workers against the optimum by load. Below: the mean over two models."""
    from matplotlib.axes import Axes

    from loadtest.common.plots import plain_numbers, saved_grid

    def distances(axes: Axes, device: str, factor: float) -> None:
        cells = [one for one in data["workers"]["cells"] if (one["device"], one["factor"]) == (device, factor)]
        for policy, (colour, dash) in _LOOKS.items():
            distances = [100 * max(_FLOOR, fmean(above_optimum(cell, policy))) for cell in cells]
            axes.plot([cell["load"] for cell in cells], distances, f"o{dash}", color=colour, label=policy)
        axes.axhline(100 * TWO, color="grey", linestyle="--", linewidth=1)
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        axes.set_title(f"two workers: {device}, x {factor:g}", fontsize=11)
        axes.set_xlabel("load, share of what both serve")

    def bars(axes: Axes, title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> None:
        width = 0.84 / len(series)  # of a bar; those of a group are side by side
        for number, (name, values) in enumerate(series.items()):
            places = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
            axes.bar(places, values, width, color=_COLOURS[name], label=name)
        axes.set_xticks(np.arange(len(groups)), groups)
        axes.grid(visible=False, axis="x")
        axes.set_title(title, fontsize=11)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_ylim(top=1.2 * max(map(max, series.values())))  # room for the legend
        axes.legend(fontsize=8, ncols=3, loc="upper center")

    pairs = [one for one in data["models"]["cells"] if (one["load"], one["share"]) == (0.6, 0.5)]
    with saved_grid(folder / "many.png", 2, 2, (11, 8)) as (figure, grid):
        for axes, (device, factor) in zip(grid.flat[:3], _PLOTTED, strict=True):
            distances(axes, device, factor)
        for axes in grid[:, 0]:
            axes.set_ylabel("mean latency above\nthe optimum, %")
        grid[0, 0].legend(fontsize=8)
        orders = {order: [1 + gain(one, order) for one in pairs] for order in ("index", "optimum")}
        names = [one["pair"].replace(", ", "\n").replace(" (", "\n(") for one in pairs]
        bars(grid[1, 1], "mean of two models over\norder of arrival, load 0.6", names, orders)
        figure.tight_layout()


PAGE = Page("many", __name__, missed, draw)
EXPERIMENT = in_sections(PAGE, "experiments.many", __doc__, {name: part.measure for name, part in PARTS.items()})

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
