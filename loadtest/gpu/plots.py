"""The plots beside the page, drawn from the results in gpu.json."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.axes import Axes

from loadtest.common import plots

from .data import MIB, QOS_MS, Found
from .tables import rates, title


def draw(known: Found, folder: Path) -> list[Path]:
    """Draw a plot of each result there is; returns the paths. At most five, since a lent machine returns few files."""
    made: list[Path] = []

    def one(name: str, wanted: Sequence[str], work: Callable[[Path], None]) -> None:
        if all(known.get(key, {}).get("runs") for key in wanted):
            path = folder / f"{name}.png"
            work(path)
            made.append(path)

    one("figure6", ["figure6a", "figure6b"], lambda path: _figure6(known, path))
    one("figure11", ["figure11"], lambda path: _figure11(known["figure11"]["runs"], path))
    one("effects", ["effects"], lambda path: _effects(known["effects"]["runs"], path))
    contests = known.get("live", {}).get("runs", [])
    measured = [run for run in contests if any(peak["rate"] for peak in run["peaks"].values())]
    if measured:
        names = list(measured[0]["peaks"])
        series = {name: [run["peaks"].get(name, {}).get("rate") or 0.0 for run in measured] for name in names}
        path = folder / "figure9.png"
        plots.bars([title(run["model"]) for run in measured], series, f"rate/s with 99 % within {QOS_MS:.0f} ms", path)
        made.append(path)
    panels = [_burst(run) for run in contests if any("latency_ms" in one for one in run["burst"].values())]
    if panels:
        _panels(len(panels), lambda axes: _figure8(axes, panels), folder / "figure8.png", 5.0)
        made.append(folder / "figure8.png")
    return made


def _burst(run: Found) -> plots.Panel:
    steps = list(zip(run["counts"], run["rates"], strict=True))
    lines = {name: one["latency_ms"][0] for name, one in run["burst"].items() if "latency_ms" in one}
    worst = max(float(np.nanmax(line)) for line in lines.values())
    # a QoS line far above all latencies would make them too small to see
    return plots.Panel(title(run["model"]), steps, lines, qos_ms=QOS_MS if worst > QOS_MS / 3 else None)


def _figure8(axes: Sequence[Axes], panels: Sequence[plots.Panel]) -> None:
    for place, panel in zip(axes, panels, strict=True):
        plots.requests_panel(place, panel)
    axes[0].set_ylabel("latency, ms")
    axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1.1), ncols=3, fontsize=9)


def _panels(count: int, work: Callable[[Sequence[Axes]], None], path: Path, height: float = 3.6) -> None:
    with plots.saved_grid(path, 1, count, (5 * count + 1, height)) as (figure, grid):
        work(list(grid[0]))
        figure.tight_layout()


def _figure6(known: Found, path: Path) -> None:
    def work(axes: Sequence[Axes]) -> None:
        cells = known["figure6a"]["runs"][0]["cells"]
        for key, name in (("bare_ms", "bare"), ("slots_ms", "slots")):
            axes[0].plot([cell["pieces"] for cell in cells], [median(cell[key]) for cell in cells], "o-", label=name)
        _log(axes[0], "copies", "total time, ms")
        for colour, run in enumerate(known["figure6b"]["runs"]):
            counts = [cell["workers"] for cell in run["cells"]]
            name = f"{title(run['model'])}, {run['precision']}"
            times = [median(cell["engine_ms"]) for cell in run["cells"]]
            axes[1].plot(counts, times, f"C{colour}o-", label=name)
            axes[1].plot(counts, [median(cell["graphs_ms"]) for cell in run["cells"]], f"C{colour}--", alpha=0.6)
        axes[1].plot([], [], "k--", alpha=0.6, label="dashed: bare graphs")
        _log(axes[1], "workers", "total time, ms")

    _panels(2, work, path)


def _figure11(runs: Sequence[Found], path: Path) -> None:
    cases = [run for run in runs if "case" in run]

    def work(axes: Sequence[Axes]) -> None:
        bottom = [0.0] * len(cases)
        for key in ("tensors", "pools", "workspaces"):
            heights = [run[key] / MIB for run in cases]
            axes[0].barh([run["case"] for run in cases], heights, left=bottom, label=key)
            bottom = [low + high for low, high in zip(bottom, heights, strict=True)]
        axes[0].set_xlabel("MiB")
        axes[0].invert_yaxis()
        axes[0].legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, fontsize=9)

    _panels(1, work, path)


def _effects(runs: Sequence[Found], path: Path) -> None:
    def work(axes: Sequence[Axes]) -> None:
        for place, run in zip(axes, runs, strict=True):
            found = rates(run, graphs=True, depth=2)
            for colour, size in enumerate(dict.fromkeys(key[1] for key in found)):
                for precision, dash in (("fp32", "-"), ("bf16", "--")):
                    line = {key[2]: median(found[key]) for key in found if key[:2] == (precision, size)}
                    if line:
                        name = f"{size} row{'s' * (size > 1)}, {precision}"
                        place.plot(list(line), list(line.values()), f"C{colour}o{dash}", label=name)
            place.set_title(title(run["model"]), fontsize=11)
            place.set_xlabel("workers")
            place.set_ylim(bottom=0)
        axes[0].set_ylabel("rows/s")
        axes[0].legend(fontsize=8)

    _panels(len(runs), work, path)


def _log(axes: Axes, across: str, up: str) -> None:
    axes.set_xscale("log", base=2)
    plots.plain_numbers(axes.xaxis)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=9)
