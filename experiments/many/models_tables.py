"""The tables of `models`: two models on one worker, in three orders, and several models."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from loadtest.common.page import Data, ms, standard_error, table

#: Two models at one load. By order, `arrival`, `index` and `optimum`, and by seed: `mean_ms` over all requests, and
#: `means_ms` and `p99_ms` of each model. `solved_ms`: the optimum's mean as the decision process has it.
Cell = dict[str, Any]

WITHIN = 0.03  # of the optimum
ORDERS = ("arrival", "index")
RISE = 0.10  # of a model's p99 over that in order of arrival


def mean(cell: Cell, order: str) -> float:
    return fmean(run["mean_ms"] for run in cell[order])


def above(cell: Cell) -> list[float]:
    """By seed: the index's mean over the optimum's, less one."""
    runs = zip(cell["index"], cell["optimum"], strict=True)
    return [index["mean_ms"] / best["mean_ms"] - 1 for index, best in runs]


def gain(cell: Cell) -> float:
    """The index's mean over that in order of arrival, less one."""
    return mean(cell, "index") / mean(cell, "arrival") - 1


def by_model(cell: Cell, key: str) -> str:
    """Each model's figure in both orders, in ms."""
    means = ([fmean(values) for values in zip(*(run[key] for run in cell[one]), strict=True)] for one in ORDERS)
    return ", ".join(f"{ms(old)} to {ms(new)}" for old, new in zip(*means, strict=True))


def rises(cell: Cell, order: str) -> list[float]:
    """By model: its p99 over that in order of arrival, less one."""
    models = range(len(cell["arrival"][0]["p99_ms"]))
    p99 = {key: [fmean(run["p99_ms"][model] for run in cell[key]) for model in models] for key in (order, "arrival")}
    return [new / old - 1 for new, old in zip(p99[order], p99["arrival"], strict=True)]


def where(cell: Cell) -> str:
    return f"{cell['pair']}, load {cell['load']:g}, {cell['share']:.0%} of it fast"


def missed(data: Data) -> list[str]:
    """Each target with the number of cells that miss it, and the worst."""
    cells = data["cells"]
    far = [cell for cell in cells if fmean(above(cell)) > WITHIN]
    slow = [cell for cell in cells if max(rises(cell, "index")) > RISE]
    worse = [cell for cell in cells if gain(cell) > 0]
    found = []
    if far:
        one = max(far, key=lambda cell: fmean(above(cell)))
        found.append(
            f"within {WITHIN:.0%} of the optimum: not in {len(far)} of {len(cells)} cells, "
            f"at the most {fmean(above(one)):+.0%} ({where(one)})"
        )
    if slow:
        one = max(slow, key=lambda cell: max(rises(cell, "index")))
        found.append(
            f"no p99 more than {RISE:.0%} above that in order of arrival: not in {len(slow)} of {len(cells)} cells, "
            f"at the most {max(rises(one, 'index')):+.0%} ({where(one)})"
        )
    for cell in data["several"]:
        if max(rises(cell, "index")) > RISE:
            loads = ", ".join(f"{load:g}" for load in cell["loads"])
            what = f"{', '.join(cell['models'])} at {loads} on {cell['workers']} workers"
            found.append(f"{what}: a p99 {max(rises(cell, 'index')):+.0%}")
    found += [f"the mean falls: {gain(cell):+.1%} ({where(cell)})" for cell in worse]
    return found


def both(values: list[float]) -> str:
    return ", ".join(f"{value:+.0%}" for value in values)


COLUMNS = {
    "batch times, ms": "{pair}",
    "load": "{load:g}",
    "fast": "{share:.0%}",
    "by arrival, ms": lambda cell: ms(mean(cell, "arrival")),
    "index": lambda cell: ms(mean(cell, "index")),
    "optimum": lambda cell: ms(mean(cell, "optimum")),
    "index against arrival": lambda cell: f"{gain(cell):+.1%}",
    "against the optimum": lambda cell: f"{fmean(above(cell)):+.1%} ± {100 * standard_error(above(cell)):.1f}",
    "p99 of index": lambda cell: both(rises(cell, "index")),
    "p99 of the optimum": lambda cell: both(rises(cell, "optimum")),
}


SEVERAL = {
    "batch times, ms": lambda cell: ", ".join(cell["models"]),
    "workers": "{workers}",
    "loads": lambda cell: ", ".join(f"{load:g}" for load in cell["loads"]),
    "mean of all": lambda cell: f"{ms(mean(cell, 'arrival'))} to {ms(mean(cell, 'index'))} ({gain(cell):+.0%})",
    "means": lambda cell: by_model(cell, "means_ms"),
    "p99": lambda cell: by_model(cell, "p99_ms"),
}


def fill(data: Data) -> Mapping[str, object]:
    cells = data["cells"]
    over = [max(rises(cell, "optimum")) for cell in cells]
    optimum = [mean(cell, "optimum") / mean(cell, "arrival") - 1 for cell in cells]
    return {
        "within": WITHIN,
        "rise": RISE,
        "table": table(COLUMNS, cells),
        "several": table(SEVERAL, data["several"]),
        "count": len(cells),
        "gained": fmean(gain(cell) for cell in cells),
        "optimum_gained": fmean(optimum),
        "over": sum(rise > RISE for rise in over),
        "most_over": max(over),
        "error": max(abs(mean(cell, "optimum") / cell["solved_ms"] - 1) for cell in cells),
    }
