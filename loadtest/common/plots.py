"""Plots of the experiments, in one style. Imported only to draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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


def ranked(names: Sequence[str], values: Sequence[float], label: str, path: Path, ours: str = "") -> None:
    """Horizontal bars with their values, in this order from above; those whose name begins with `ours` are dark."""
    with saved(path, (8, 0.5 + 0.35 * len(names))) as axes:
        places = np.arange(len(names))[::-1]
        axes.barh(places, values, color=["k" if name.startswith(ours) else "C7" for name in names])
        for place, value in zip(places, values, strict=True):
            axes.text(value, place, f" {value:,.{0 if value >= 10 else 2}f}", va="center", fontsize=10)
        axes.set_yticks(places, names)
        axes.set_xlabel(label)
        axes.grid(visible=False)
