"""Plots of the command line, in one style. Imported only when one is asked for: matplotlib is the extra `plot`.

The ending of a file's name says the format. All raise ValueError for an ending that matplotlib does not know, and
OSError when the file cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray

matplotlib.use("Agg")  # files only; no window system is looked for

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.ticker import FuncFormatter

from app.bench.run import Result
from app.errors import ConfigError
from app.scheduler.estimates.profile import ModelProfile

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
_POINTS = 400  # of a line of percentiles; a run may have a million latencies


def check_ending(path: Path) -> None:
    """Raises ConfigError for a name whose ending is no format."""
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if path.suffix[1:].lower() not in known:
        raise ConfigError(f"plot: expected a file's name that ends in {', '.join(known)}, got {str(path)!r}")


@contextmanager
def _figure(path: Path, rows: int = 1, columns: int = 1, title: str = "") -> Iterator[list[Axes]]:
    """The panels of a figure, which is written to `path` at the end."""
    size = (7, 4) if columns == 1 else (10, 4 * rows)
    with plt.rc_context({**STYLE, "figure.figsize": size}):
        figure, panels = plt.subplots(rows, columns, squeeze=False)
        try:
            yield list(panels.flat)
            if title:
                figure.suptitle(title, fontsize=11)
            figure.tight_layout()
            figure.savefig(path)
        finally:
            plt.close(figure)


def latency(cells: Sequence[Cell], path: Path) -> None:
    """Simulated cells: against the number of replicas, a line per router, where the cells differ in it; otherwise
    against load, a line per policy."""
    with _figure(path) as (axes,):
        if len({cell.get("replicas", 1) for cell in cells}) > 1:
            _against_replicas(axes, cells)
        else:
            _against_load(axes, cells)
        scale(axes)
        _legend(axes)


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


def batch_times(profile: ModelProfile, path: Path) -> None:
    """Batch time and rows per second against batch size.

    A line for one batch at a time, with the band of its quartiles where the profile has it, one for each number of
    batches at once, and the straight line of the fit. Below, where there are any, a line for each stage and for each
    length.
    """
    sizes = list(range(1, profile.max_batch + 1))
    by_stage = {f"stage {number}": stage.batch_ns for number, stage in enumerate(profile.stages)}
    by_length = {f"length {length}": times for length, times in profile.by_length}
    below = [curves for curves in (by_stage, by_length) if curves]
    title = f"{profile.model}, {profile.device}, {profile.threads} thread(s) per worker"
    with _figure(path, 2 if below else 1, 2, title) as (left, right, *others):
        for units, times in {1: profile.batch_ns, **profile.concurrency_ns}.items():
            name = "one batch" if units == 1 else f"{units} at once"
            left.plot(sizes, [ns / 1e6 for ns in times], "o-", label=name)
            right.plot(sizes, [units * b * 1e9 / ns for b, ns in enumerate(times, 1)], "o-", label=name)
        spread = profile.extra.get("spread", {})
        middle = np.array(profile.batch_ns) / 1e6
        half = middle * [spread.get(str(size), 0.0) / 2 for size in sizes]
        left.fill_between(sizes, middle - half, middle + half, color="C0", alpha=0.2)
        line = profile.fit()
        fitted = [(line.alpha_ns + line.beta_ns * size) / 1e6 for size in sizes]
        name = f"{line.alpha_ns / 1e6:.2g} + {line.beta_ns / 1e6:.2g} b ms"
        left.plot(sizes, fitted, "--", color="grey", label=name)
        right.set_ylabel("throughput, rows/s")
        for axes, curves in zip(others, below, strict=False):
            for name, times in curves.items():
                axes.plot(sizes, [ns / 1e6 for ns in times], "o-", label=name)
        for axes in others[len(below) :]:
            axes.remove()
        for axes in (left, *others[: len(below)]):
            axes.set_ylabel("batch time, ms")
        _against_size(left, right, *others[: len(below)])


def stage_times(name: str, whole: Mapping[int, float], stages: Sequence[Mapping[int, float]], path: Path) -> None:
    """The stages' batch times, stacked, and their rows per second against batch size. Times are ms by size."""
    sizes = list(whole)
    with _figure(path, 1, 2, f"{name} in {len(stages)} stages") as (left, right):
        parts = [[stage[size] for size in sizes] for stage in stages]
        left.stackplot(sizes, parts, alpha=0.6, labels=[f"stage {number}" for number in range(len(stages))])
        left.plot(sizes, list(whole.values()), "k--", label="whole")
        for number, part in enumerate(parts):
            rates = [size * 1e3 / time for size, time in zip(sizes, part, strict=True)]
            right.plot(sizes, rates, "o-", label=f"stage {number}")
        left.set_ylabel("batch time, ms")
        right.set_ylabel("throughput, rows/s")
        _against_size(left, right)


def _against_size(*panels: Axes) -> None:
    for axes in panels:
        axes.set_xlabel("batch size, rows")
        axes.set_ylim(bottom=0)
        axes.legend()


def percentiles(result: Result, path: Path) -> None:
    """Latency against percentile, with the same width for each further nine: a thin line per repeat, a thick one for
    all together. There must be right answers."""
    plan = result.plan
    runs = [np.sort(repeat.completed) for repeat in result.repeats if len(repeat.completed)]
    load = f"{plan.concurrency} in flight (closed loop)" if plan.concurrency else f"{plan.mean_rate:.0f} requests/s"
    with _figure(path) as (axes,):
        for number, run in enumerate(runs if len(runs) > 1 else []):
            _line(axes, run, color="C0", alpha=0.4, linewidth=0.8, label=None if number else "one repeat")
        merged = np.sort(np.concatenate(runs))
        _line(axes, merged, color="C0", linewidth=2.2, label="all" if len(runs) > 1 else "latency")
        if plan.deadline_ms is not None:
            axes.axhline(plan.deadline_ms, color="C3", linestyle="--", linewidth=1, label="deadline")
        _axis(axes, len(merged))
        axes.set_title(f"{plan.model}, {load}", fontsize=11)
        scale(axes)
        axes.legend()


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
