"""Plots of the command line, in one style. Imported only when one is asked for: matplotlib is the extra `plot`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")  # files only; no window system is looked for

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

Cell = dict[str, Any]

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


def latency(cells: Sequence[Cell], path: Path) -> None:
    """Write one plot of simulated cells to `path`, whose ending says the format.

    Against the number of replicas, a line per router, where the cells differ in it; otherwise against load, a line per
    policy. Raises ValueError for an ending that matplotlib does not know, OSError when the file cannot be written.
    """
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots()
        try:
            if len({cell.get("replicas", 1) for cell in cells}) > 1:
                _against_replicas(axes, cells)
            else:
                _against_load(axes, cells)
            scale(axes)
            _legend(axes)
            figure.tight_layout()
            figure.savefig(path)
        finally:
            plt.close(figure)


def _against_load(axes: Axes, cells: Sequence[Cell]) -> None:
    """The mean as a line per policy, and the 99th percentile dashed; the load is a share of the best throughput.

    What has a mean only is a bound, not a run: dotted, on top of what it bounds.
    """
    for colour, (name, line) in enumerate(_lines(cells, lambda cell: _name(cell, cells))):
        loads = [cell["load"] for cell in line]
        means = [cell["mean_ms"] for cell in line]
        if any(cell.get("p99_ms") is None for cell in line):
            axes.plot(loads, means, "k:", label=name)
            continue
        axes.plot(loads, means, f"C{colour}o-", label=name)
        axes.plot(loads, [cell["p99_ms"] for cell in line], f"C{colour}--", alpha=0.6)
    axes.plot([], [], "k--", alpha=0.6, label="dashed: 99 %")
    axes.set_xlabel("load, share of the best throughput")
    axes.set_ylabel("mean latency, ms")


def _against_replicas(axes: Axes, cells: Sequence[Cell]) -> None:
    rates = {f"{cell['rate']:g} /s" for cell in cells}
    loads = {f"load {cell['load']:.3g}" for cell in cells}
    by_rate = len(rates) < len(loads)  # the same traffic for more or fewer replicas
    several = len(rates if by_rate else loads) > 1
    policies = len({cell["policy"] for cell in cells}) > 1

    def name(cell: Cell) -> str:
        traffic = f"{cell['rate']:g} /s" if by_rate else f"load {cell['load']:.3g}"
        parts = [cell["router"], cell["policy"] if policies else "", traffic if several else ""]
        return ", ".join(part for part in parts if part)

    for title, line in _lines([cell for cell in cells if "router" in cell], name):
        axes.plot([cell["replicas"] for cell in line], [cell["p99_ms"] for cell in line], "o-", label=title)
    axes.set_xscale("log")
    counts = sorted({cell["replicas"] for cell in cells if "router" in cell})
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_xlabel("replicas")
    axes.set_ylabel("latency, 99th percentile, ms")


def _name(cell: Cell, cells: Sequence[Cell]) -> str:
    routers = len({other.get("router") for other in cells}) > 1
    return f"{cell['policy']}, {cell['router']}" if routers else str(cell["policy"])


def _lines(cells: Sequence[Cell], name: Callable[[Cell], str]) -> list[tuple[str, list[Cell]]]:
    """Cells in which something completed, by the name of their line, in order of appearance."""
    lines: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell["mean_ms"] is not None:
            lines.setdefault(name(cell), []).append(cell)
    return list(lines.items())


def _legend(axes: Axes) -> None:
    """Inside, where there is room for it; above the plot where there are many lines."""
    names = axes.get_legend_handles_labels()[1]
    if len(names) > 4:
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=9)
    else:
        axes.legend()


def scale(axes: Axes) -> None:
    """From 0 where the values are of one size, logarithmic where they are not."""
    values = [value for line in axes.get_lines() for value in np.asarray(line.get_ydata(), dtype=float)]
    if values and max(values) > 20 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.set_ylim(bottom=0)
