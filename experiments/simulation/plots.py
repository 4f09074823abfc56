"""The two plots of the page. Imported only to draw."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from loadtest.common.plots import plain_numbers, saved

Cell = dict[str, Any]


def against_load(cells: Sequence[Cell], path: Path) -> None:
    """The mean as a line per policy, and the 99th percentile dashed; the load is a share of the best throughput.

    What has a mean only is a bound, not a run: dotted, on top of what it bounds.
    """
    with saved(path) as axes:
        for colour, policy in enumerate(dict.fromkeys(cell["policy"] for cell in cells)):
            line = [cell for cell in cells if cell["policy"] == policy and cell["mean_ms"] is not None]
            loads, means = [cell["load"] for cell in line], [cell["mean_ms"] for cell in line]
            bound = any(cell.get("p99_ms") is None for cell in line)
            axes.plot(loads, means, "k:" if bound else f"C{colour}o-", label=policy)
            if not bound:
                axes.plot(loads, [cell["p99_ms"] for cell in line], f"C{colour}--", alpha=0.6)
        axes.plot([], [], "k--", alpha=0.6, label="dashed: 99 %")
        axes.set_xlabel("load, share of the best throughput")
        axes.set_ylabel("mean latency, ms")
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        _legend(axes)


def against_replicas(cells: Sequence[Cell], path: Path) -> None:
    """The 99th percentile, a line per router."""
    with saved(path) as axes:
        for router in dict.fromkeys(cell["router"] for cell in cells):
            line = [cell for cell in cells if cell["router"] == router]
            axes.plot([cell["replicas"] for cell in line], [cell["p99_ms"] for cell in line], "o-", label=router)
        counts = sorted({cell["replicas"] for cell in cells})
        axes.set_xscale("log")
        axes.set_xticks(counts, [f"{count:,}" for count in counts])
        axes.minorticks_off()
        axes.set_xlabel("replicas")
        axes.set_ylabel("latency, 99th percentile, ms")
        axes.set_ylim(0, 1.05 * max(cell["p99_ms"] for cell in cells))
        _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1), ncols=4, fontsize=9)
