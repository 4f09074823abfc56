"""The tables of `deadlines` and `deadlines_live`: shares in time and device time by policy, and the bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadtest.common.page import Column, Data, table

SHARE = 0.99  # of calls that must end in time
REACHED = 0.9  # of the bound, at which that share does
SAVED = 0.4  # of the device time of serving all that waits, at 0.6 of the bound
MODERATE = 0.6  # of the bound: up to here that share must end in time over HTTP
BETTER = 1.5  # times the share in time of `window`, at a tight deadline, beyond what is served
TIGHT_MS = 30

Figures = Mapping[str, Any]


def saved(ways: Figures) -> float:
    """Device time of the objective less than that of serving all that waits, as a share."""
    return float(1 - ways["deadline"]["row_ms"] / ways["all that waits"]["row_ms"])


def savable(found: Figures) -> float:
    return float(1 - found["least_ms"] / found["moderate"]["all that waits"]["row_ms"])


def better(case: Figures) -> float:
    return float(case["deadline"] / case["window"])


def missed(data: Data) -> list[str]:
    lines = []
    for found in data["studies"]:
        name = f"{found['device']}, {found['workers']} workers"
        if found["highest"]["deadline"] < REACHED:
            lines.append(f"{name}: 99 % in time up to {found['highest']['deadline']:.2f} of the bound")
        gain = saved(found["moderate"])
        if gain < SAVED:
            lines.append(f"{name}: {gain:.0%} less device time, at most {savable(found):.0%} with even arrivals")
        if found["moderate"]["deadline"]["in_time"] < SHARE:
            lines.append(f"{name}: {found['moderate']['deadline']['in_time']:.2%} in time at 0.6 of the bound")
    tight = [case for case in data["lengths"] if case["deadline_ms"] <= TIGHT_MS and case["load"] > 1]
    worse = [case for case in tight if better(case) < BETTER]
    return lines + [
        f"{case['deadline_ms']:g} ms, load {case['load']:g}: {better(case):.2f} x `window`" for case in worse
    ]


def known(found: Figures) -> str:
    return "" if found["known"] is None else f"{found['known']:.2f}"


GOODPUT: dict[str, Column] = {
    "": "{device}, {deadline_ms:g} ms",
    "N": "{workers}",
    "bound, rows/s": lambda found: f"{found['bound']:,.0f} (b = {found['rows']})",
    "uncoordinated": lambda found: f"{found['uncoordinated'] / found['bound']:.2f}",
    "`deadline`": lambda found: f"**{found['highest']['deadline']:.2f}**",
    "all that waits": lambda found: f"{found['highest']['all that waits']:.2f}",
    "arrivals known": known,
    "at 0.9: `deadline`": lambda found: f"{found['high']['deadline']:.2%}",
    "all that waits ": lambda found: f"{found['high']['all that waits']:.2%}",
    "`window`": lambda found: f"{found['high']['window']:.2%}",
}
DEVICE_TIME: dict[str, Column] = {
    "": "{device}",
    "N": "{workers}",
    "`deadline`, ms a row": "{moderate[deadline][row_ms]:.2f}",
    "rows a batch": "{moderate[deadline][batch]:.1f}",
    "in time": lambda found: f"{found['moderate']['deadline']['in_time']:.2%}",
    "all that waits, ms": "{moderate[all that waits][row_ms]:.2f}",
    "rows": "{moderate[all that waits][batch]:.1f}",
    "in time ": lambda found: f"{found['moderate']['all that waits']['in_time']:.2%}",
    "saved": lambda found: f"**{saved(found['moderate']):.0%}**",
    "even arrivals: at most": lambda found: f"{savable(found):.0%}",
}
LENGTHS: dict[str, Column] = {
    "deadline, ms": "{deadline_ms:g}",
    "load": "{load:g}",
    "`window`, 5 ms": lambda case: f"{case['window']:.3f}",
    "best delay": lambda case: f"{case['best window']:.3f} ({case['best_delay_ms']:g} ms)",
    "`latency`": lambda case: f"{case['by latency']:.3f}",
    "`deadline`": lambda case: f"**{case['deadline']:.3f}**",
    "over `window`": lambda case: f"{better(case):.2f} x",
    "over the best": lambda case: f"{case['deadline'] / case['best window']:.2f} x",
}


def fill(data: Data) -> Mapping[str, object]:
    names = list(data["studies"][0]["varied"])
    varied: dict[str, Column] = {"": "{device}", "N": "{workers}"}
    varied |= {name: f"{{varied[{name}][in_time]:.4f}} / {{varied[{name}][row_ms]:.2f}}" for name in names}
    return {
        "goodput": table(GOODPUT, data["studies"]),
        "device_time": table(DEVICE_TIME, data["studies"]),
        "by_length": table(LENGTHS, data["lengths"]),
        "assumptions": table(varied, data["studies"]),
    }


def missed_live(data: Data) -> list[str]:
    lines = []
    for cell in data["cells"]:
        ways, name = cell["ways"], f"{cell['workers']} workers, load {cell['load']:g}"
        if cell["load"] <= MODERATE and ways["deadline"]["in_time"] < SHARE:
            lines.append(f"{name}: {ways['deadline']['in_time']:.2%} in time")
        if saved(ways) <= 0:
            lines.append(f"{name}: {saved(ways):.0%} device time saved")
    return lines


def way(name: str) -> Column:
    return f"{{ways[{name}][in_time]:.2%}} / {{ways[{name}][row_ms]:.2f}} / {{ways[{name}][batch]:.1f}}"


LIVE: dict[str, Column] = {
    "workers": "{workers}",
    "load": "{load:g} of {bound:,.0f}/s",
    "`deadline`": way("deadline"),
    "all that waits": way("all that waits"),
    "`window`": way("window"),
    "saved": lambda cell: f"{saved(cell['ways']):.0%}",
    "lag, ms": lambda cell: f"{max(own['lag_ms'] for own in cell['ways'].values()):.1f}",
}


def fill_live(data: Data) -> Mapping[str, object]:
    return {"table": table(LIVE, data["cells"])}
