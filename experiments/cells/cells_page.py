"""The page of `cells`: recurrent models by their cell against the same weights served whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, joined, ms, table

Figures = Mapping[str, Any]

CELLS = "cells"
PEAK = 1.10  # of the better baseline's, with lengths that differ
P50_VARIED, AT = 0.65, 0.7  # of the best baseline's at this share of its peak
P50_ALIKE, FROM, TO = 0.80, 0.3, 0.8  # with one length, at these shares
JOIN = 3  # steps
STEP = 0.10  # of a step


def percent(value: float) -> str:
    return f"{100 * value:+.0f} %"


def varied(found: Figures) -> bool:
    """Whether rows differ in length."""
    return len(found["whole"]) > 1


def peak_ratio(found: Figures) -> float:
    """The peak by cells over that of the better baseline."""
    return float(found["peaks"][CELLS] / max(found["peaks"][model] for model in found["whole"]))


def over_best(found: Figures, load: Figures, figure: str) -> float:
    """Latency by cells over that of the best baseline."""
    return float(load[CELLS][figure] / min(load[model][figure] for model in found["whole"]))


def missed(data: Data) -> list[str]:
    lines = [line for found in data["datasets"] for line in _missed_live(found)]
    steps = median(steps for steps, _ in data["steps"]["join"]["cells"])
    if steps > JOIN:
        lines.append(f"a row of length 1 is answered after {steps:g} steps, target {JOIN}")
    for cost in data["steps"]["costs"][:1]:
        for way in ("together", "in_turn"):
            beyond = cost[way] / cost["bare"] - 1
            if beyond > STEP:
                lines.append(f"a step costs {percent(beyond)} beyond the cell, {way.replace('_', ' ')}")
    return lines


def _missed_live(found: Figures) -> list[str]:
    name, lines = found["dataset"], []
    if varied(found) and peak_ratio(found) < PEAK:
        lines.append(f"{name}: peak {percent(peak_ratio(found) - 1)}, target {percent(PEAK - 1)}")
    for load in found["loads"]:
        share, ratio = load["share"], over_best(found, load, "p50_ms")
        target = P50_VARIED if varied(found) else P50_ALIKE
        judged = share == AT if varied(found) else FROM <= share <= TO
        if judged and ratio > target:
            lines.append(f"{name}, {share:g} of the peak: p50 {ratio:.2f} x, target {target}")
    return lines


def shown(model: str) -> str:
    """A model's name for people: `padded40` is padded, in buckets of 40."""
    width = model.removeprefix("padded")
    return f"padded, width {width}" if width != model else model


def dataset(found: Figures) -> str:
    """The section of one distribution of lengths."""
    peaks: dict[str, Column] = {
        "rows/s": shown,
        "at most": lambda model: f"{found['most'][model]:.0f}",
        "peak": lambda model: f"{found['peaks'][model]:.0f}" if model in found["peaks"] else "",
    }
    latencies: dict[str, Column] = {"of the peak": "{share:g}", "rows/s": "{rate:.0f}"}
    for model in (CELLS, *found["whole"]):
        latencies[f"{shown(model)}: p50 / p99, ms"] = f"{{{model}[p50_ms]:ms}} / {{{model}[p99_ms]:ms}}"
    latencies["cells over the best"] = lambda load: " / ".join(
        f"{over_best(found, load, figure):.2f} x" for figure in ("p50_ms", "p99_ms")
    )
    return joined(
        [
            f"## {found['dataset']}: `{found['spec']}`",
            table(peaks, found["most"]),
            f"The peak by cells is {percent(peak_ratio(found) - 1)} against the better baseline's."
            if varied(found)
            else "",
            table(latencies, found["loads"]),
            f"The load generator was at most {found['lag_p99_ms']:.1f} ms late (p99 of a run).",
        ]
    )


def fill(data: Data) -> Mapping[str, object]:
    def beyond(way: str) -> Column:
        return lambda cost: (
            f"{cost[way]:,.0f} ({cost[way] - cost['bare']:+,.0f}, {percent(cost[way] / cost['bare'] - 1)})"
        )

    def steps(found: Any) -> str:
        counts = [steps for steps, _ in found[1]]
        return f"{median(counts):g} ({min(counts):g} to {max(counts):g})"

    joins: dict[str, Column] = {
        "": lambda found: found[0],
        "steps": steps,
        "ms": lambda found: ms(median(time for _, time in found[1])),
    }
    costs: dict[str, Column] = {
        "layers": "{layers}",
        "bare loop, us": "{bare:,.0f}",
        "together, us": beyond("together"),
        "in turn, us": beyond("in_turn"),
    }
    return {
        "beyond": STEP,
        "live": joined(map(dataset, data["datasets"])),
        "joins": table(joins, data["steps"]["join"].items()),
        "costs": table(costs, data["steps"]["costs"]),
    }


def draw(data: Data, folder: Path) -> None:
    from loadtest.common import plots

    datasets = data["datasets"]
    with plots.saved_grid(folder / "cells.png", 1, len(datasets), (5 * len(datasets), 3.8)) as (figure, grid):
        for axes, found in zip(grid[0], datasets, strict=True):
            rates = [load["rate"] for load in found["loads"]]
            for number, model in enumerate((CELLS, *found["whole"])):
                for name, dash in (("p50", "-"), ("p99", ":")):
                    values = [load[model][f"{name}_ms"] for load in found["loads"]]
                    axes.plot(rates, values, dash, color=f"C{number}", marker=".", label=f"{shown(model)}, {name}")
            axes.set_title(found["dataset"])
            axes.set_xlabel("rows/s")
            axes.set_yscale("log")
            axes.legend(fontsize=8)
            plots.plain_numbers(axes.yaxis)
        grid[0, 0].set_ylabel("latency, ms")
        figure.tight_layout()


PAGE = Page("cells", __file__, fill, missed, draw)
