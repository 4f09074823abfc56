"""The page of `experiments.many`: several workers, several models, deadlines, and fifty models in one server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from experiments.many import deadlines_tables, models_tables, steps_tables, workers_tables
from loadtest.common.page import Column, Data, Page, missed_list, section_facts, table

_SAME = 1.02  # function calls of a batch with 50 models over those with one


def _missed_of_fifty(data: Data) -> list[str]:
    one, fifty = (
        next(cost["calls"] for cost in data["costs"] if (cost["programs"], cost["waiting"]) == (number, 1))
        for number in (1, 50)
    )
    return [f"a batch makes {fifty:g} calls beside 49 idle models, {one:g} alone"] if fifty > _SAME * one else []


def _fill_fifty(data: Data) -> Mapping[str, object]:
    first, last = data["servers"][0], data["servers"][-1]
    more = last["models"] - first["models"]
    started: dict[str, Column] = {
        "models": "{models}", "ready, s": "{ready_s:.2f}", "CPU time, s": "{cpu_s:.2f}",
        "memory, MiB": "{resident_mib:.0f}",
    }  # fmt: skip
    costs: dict[str, Column] = {
        "models": "{programs}", "of them with rows waiting": "{waiting}", "function calls": "{calls:g}",
        "us": "{us:.1f}",
    }  # fmt: skip
    return {
        "started": table(started, data["servers"]),
        "stepped": table(costs, data["costs"]),
        "each_mib": (last["resident_mib"] - first["resident_mib"]) / more,
        "each_s": (last["cpu_s"] - first["cpu_s"]) / more,
    }


@dataclass(frozen=True)
class Part:
    """A section of the page: what its tables are made of, and the targets that its figures miss."""

    title: str
    fill: Callable[[Data], Mapping[str, object]]
    missed: Callable[[Data], Sequence[str]]


#: By their names in the figures and on the command line, in the order in which they are measured.
PARTS = {
    "workers": Part("two workers", workers_tables.fill, workers_tables.missed),
    "several": Part("four and eight workers", workers_tables.fill, workers_tables.missed),
    "steps": Part("two workers over HTTP", steps_tables.fill, steps_tables.missed),
    "models": Part("several models", models_tables.fill, models_tables.missed),
    "deadlines": Part("deadlines", deadlines_tables.fill, deadlines_tables.missed),
    "deadlines_live": Part("deadlines over HTTP", deadlines_tables.fill_live, deadlines_tables.missed_live),
    "fifty": Part("fifty models", _fill_fifty, _missed_of_fifty),
}


def fill(data: Data) -> Mapping[str, object]:
    """Of each part its figures, its tables, and the targets that it misses."""
    parts = {
        name: {**data[name], **part.fill(data[name]), "missed": missed_list(part.missed(data[name]))}
        for name, part in PARTS.items()
    }
    return {**parts, **section_facts(data, "experiments.many")}


def missed(data: Data) -> list[str]:
    return [f"{part.title}: {line}" for name, part in PARTS.items() for line in part.missed(data[name])]


_PLOTTED = (("mlp", 1.0), ("resnet18", 1.0), ("7 + 0.6 b", 1.3))  # devices of two workers
_COLOURS = {
    "all that waits": "C2", "uncoordinated bound": "C0", "deadline": "k",
    "even arrivals": "C7", "index": "k", "optimum": "C7",
}  # fmt: skip
_FLOOR = 0.0005  # of a distance to the optimum, on a logarithmic axis


def draw(data: Data, folder: Path) -> None:
    """Above: two workers against the optimum by load. Below: goodput, device time, and the mean over two models."""
    from matplotlib.axes import Axes

    from loadtest.common.plots import LOOKS, grouped_bars, plain_numbers, saved_grid

    def distances(axes: Axes, device: str, factor: float) -> None:
        cells = [one for one in data["workers"]["cells"] if (one["device"], one["factor"]) == (device, factor)]
        for policy in ("no_wait", "window", "adaptive"):
            above = [100 * max(_FLOOR, fmean(workers_tables.above(cell, policy))) for cell in cells]
            colour, dash = LOOKS[policy]
            axes.plot([cell["load"] for cell in cells], above, f"o{dash}", color=colour, label=policy)
        axes.axhline(100 * workers_tables.TWO, color="grey", linestyle="--", linewidth=1)
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        axes.set_title(f"two workers: {device}, x {factor:g}", fontsize=11)
        axes.set_xlabel("load, share of what both serve")

    def bars(axes: Axes, title: str, groups: Sequence[str], series: Mapping[str, Sequence[float]]) -> None:
        grouped_bars(axes, groups, {name: (_COLOURS[name], values) for name, values in series.items()})
        axes.set_title(title, fontsize=11)
        axes.tick_params(axis="x", labelsize=8)
        axes.set_ylim(top=1.2 * max(map(max, series.values())))  # room for the legend
        axes.legend(fontsize=8, ncols=3, loc="upper center")

    studies = data["deadlines"]["studies"]
    groups = [f"{one['workers']}\n{one['device'] if one['workers'] == 4 else ''}" for one in studies]
    pairs = [one for one in data["models"]["cells"] if (one["load"], one["share"]) == (0.6, 0.5)]
    with saved_grid(folder / "many.png", 2, 3, (16, 8)) as (figure, grid):
        for axes, (device, factor) in zip(grid[0], _PLOTTED, strict=True):
            distances(axes, device, factor)
        grid[0, 0].set_ylabel("mean latency above\nthe optimum, %")
        grid[0, 0].legend(fontsize=8)
        ways = {
            "all that waits": [one["highest"]["all that waits"] for one in studies],
            "uncoordinated bound": [one["uncoordinated"] / one["bound"] for one in studies],
            "deadline": [one["highest"]["deadline"] for one in studies],
        }
        bars(grid[1, 0], "goodput over the bound, by workers", groups, ways)
        saved = {
            "deadline": [deadlines_tables.saved(one["moderate"]) for one in studies],
            "even arrivals": [deadlines_tables.savable(one) for one in studies],
        }
        bars(grid[1, 1], "device time saved at 0.6 of the bound, by workers", groups, saved)
        orders = {
            order: [models_tables.mean(one, order) / models_tables.mean(one, "arrival") for one in pairs]
            for order in ("index", "optimum")
        }
        names = [one["pair"].replace(", ", "\n").replace(" (", "\n(") for one in pairs]
        bars(grid[1, 2], "mean of two models over that in order of arrival, load 0.6", names, orders)
        figure.tight_layout()


PAGE = Page("many", __file__, fill, missed, draw)
