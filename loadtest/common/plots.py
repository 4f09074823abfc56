"""Plots of the experiments, in one style. Imported only to draw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

STYLE: dict[Any, Any] = {
    "figure.figsize": (7, 4),
    "figure.dpi": 150,
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "lines.markersize": 5,
    "legend.frameon": False,
}

#: One colour and dash for a policy in all plots.
LOOKS = {
    "no_wait": ("C2", "-"), "no_wait, 12 threads": ("C5", "-"), "window": ("C0", "-"), "static": ("C4", "-"),
    "preferred": ("C3", "-"), "preferred, literal": ("C3", ":"), "ebird": ("C1", "-"), "adaptive": ("k", "-"),
}  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """Latencies of one model in order of arrival. `steps`: requests and rate of each step."""

    title: str
    steps: Sequence[tuple[int, float]]
    lines: Mapping[str, Sequence[float]]
    qos_ms: float | None = None


@contextmanager
def saved_grid(
    path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any
) -> Iterator[tuple[Figure, NDArray[Any]]]:
    """A figure with `rows` by `columns` axes and this size in inches, which is written to `path` at the end."""
    with plt.rc_context({**STYLE, "figure.figsize": size}):
        figure, grid = plt.subplots(rows, columns, squeeze=False, **options)
        try:
            yield figure, grid
            figure.savefig(path)
        finally:
            plt.close(figure)


@contextmanager
def saved(path: Path, size: tuple[float, float] = (7, 4)) -> Iterator[Axes]:
    """The axes of a figure with a single panel, which is written to `path` at the end."""
    with saved_grid(path, 1, 1, size) as (figure, grid):
        yield grid[0, 0]
        figure.tight_layout()


def plain_numbers(axis: Axis) -> None:
    """Label a logarithmic axis with numbers like 100, not 10^2."""
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def legend_above(figure: Figure, grid: NDArray[Any], columns: int = 0) -> None:
    """One legend above all panels, with the entries of the first panel."""
    handles, names = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="upper center", ncols=columns or len(names), fontsize=10)


def latency_by_request(panels: Sequence[Panel], path: Path) -> None:
    """A panel per model: latency in ms against request number, with the rate above each step."""
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    with saved_grid(path, rows, columns, (4.4 * columns + 0.4, 3.1 * rows + 0.7)) as (figure, grid):
        for axes, panel in zip(grid.flat, panels, strict=False):
            requests_panel(axes, panel)
        for axes in grid.flat[len(panels) :]:
            axes.set_visible(False)
        for axes in grid[:, 0]:
            axes.set_ylabel("latency, ms")
        legend_above(figure, grid)
        figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / (3.1 * rows)))


def requests_panel(axes: Axes, panel: Panel) -> None:
    """Draw one panel of latencies."""
    for number, (name, values) in enumerate(panel.lines.items()):
        colour, dash = LOOKS.get(name, (f"C{number}", "-"))
        axes.plot(np.arange(1, len(values) + 1), values, color=colour, linestyle=dash, linewidth=1.1, label=name)
    if panel.qos_ms is not None:
        axes.axhline(panel.qos_ms, color="grey", linestyle="--", linewidth=1)
        axes.annotate("QoS", (0, panel.qos_ms), (2, 2), textcoords="offset points", fontsize=8, color="grey")
    first = 0
    for count, rate in panel.steps:
        if first:
            axes.axvline(first + 0.5, color="grey", linewidth=0.8, alpha=0.6)
        axes.annotate(
            f"{rate:.0f}/s", (first + count / 2, 1), (0, -9), xycoords=("data", "axes fraction"),
            textcoords="offset points", ha="center", fontsize=8, color="dimgrey",
        )  # fmt: skip
        first += count
    axes.set_title(panel.title, fontsize=11)
    axes.set_xlabel("request number")
    axes.set_xlim(0, first)
    axes.set_ylim(bottom=0)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.12)  # room for the rates


def grouped_bars(axes: Axes, groups: Sequence[str], series: Mapping[str, tuple[str, Sequence[float]]]) -> None:
    """Draw bars side by side, a group per model. Each series has a colour and a value for each group."""
    width = 0.84 / len(series)
    for number, (name, (colour, values)) in enumerate(series.items()):
        places = np.arange(len(groups)) + (number - (len(series) - 1) / 2) * width
        axes.bar(places, values, width, color=colour, label=name)
    axes.set_xticks(np.arange(len(groups)), groups)
    axes.grid(visible=False, axis="x")


def bars(groups: Sequence[str], series: Mapping[str, Sequence[float]], label: str, path: Path) -> None:
    """Plot one panel of bars, with one colour per policy."""
    coloured = {
        name: (LOOKS.get(name, (f"C{number}", "-"))[0], values) for number, (name, values) in enumerate(series.items())
    }
    with saved(path, (10, 4)) as axes:
        grouped_bars(axes, groups, coloured)
        axes.set_ylabel(label)
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=len(series), fontsize=10)
