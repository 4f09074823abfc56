"""Plots latency against percentile, with the same width for each further nine. Needs matplotlib (extra `plot`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from numpy.typing import NDArray

from app.cli.plots import STYLE, scale

from .run import Result

_POINTS = 400  # of a line; a run may have a million latencies


def check(path: Path) -> None:
    """Raises ValueError if no plot can be written to `path`."""
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise ValueError(f"plot: expected a file's name that ends in {', '.join(known)}, got {str(path)!r}")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"plot: expected a file in a folder that exists, got {str(path)!r}")


def percentiles(result: Result, path: Path) -> None:
    """Write the plot to `path`, whose ending sets the format: a thin line per repeat, a thick one for all together.

    There must be right answers. Raises OSError if the file cannot be written.
    """
    runs = [np.sort(repeat.completed) for repeat in result.repeats if len(repeat.completed)]
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots()
        try:
            if len(runs) > 1:
                for run in runs:
                    _line(
                        axes, run, color="C0", alpha=0.4, linewidth=0.8, label="one repeat" if run is runs[0] else None
                    )
            merged = np.sort(np.concatenate(runs))
            _line(axes, merged, color="C0", linewidth=2.2, label="all" if len(runs) > 1 else "latency")
            if result.plan.deadline_ms is not None:
                axes.axhline(result.plan.deadline_ms, color="C3", linestyle="--", linewidth=1, label="deadline")
            _axis(axes, len(merged))
            axes.set_title(_title(result), fontsize=11)
            scale(axes)
            axes.legend()
            figure.tight_layout()
            figure.savefig(path)
        finally:
            plt.close(figure)


def _line(axes: Axes, ordered: NDArray[np.int64], **look: object) -> None:
    """Draw a line up to the percentile that n values can show, which is 1 - 1/n."""
    nines = np.linspace(0, np.log10(max(len(ordered), 2)), _POINTS)  # 1 / (1 - p) = 10 ^ nines
    share = 1 - 10.0**-nines
    ranks = np.minimum((share * len(ordered) + 1e-6).astype(int), len(ordered) - 1)  # 1e-6: rounding down
    axes.plot(10.0**nines, ordered[ranks] / 1e6, **look)  # type: ignore[arg-type]


def _axis(axes: Axes, count: int) -> None:
    ticks = {1: "0", 2: "50", 10: "90", 100: "99", 1000: "99.9", 10_000: "99.99", 100_000: "99.999"}
    shown = {at: text for at, text in ticks.items() if at <= max(count, 2)}
    axes.set_xscale("log")
    axes.set_xticks(list(shown), list(shown.values()))
    axes.minorticks_off()
    axes.set_xlabel("percentile, %")
    axes.set_ylabel("latency, ms")


def _title(result: Result) -> str:
    plan = result.plan
    load = f"{plan.concurrency} in flight (closed loop)" if plan.concurrency else f"{plan.mean_rate:.0f} requests/s"
    return f"{plan.model}, {load}"
