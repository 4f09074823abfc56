"""The page that compares the policies over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.common.page import Column, Data, Page, bullets, filled, table

P99_WITHIN = 1.1  # of the best
PER_ROW_WITHIN = 1.03  # of batches of one row
_SIZES = (1, 2, 3, 4, 8, 16, 32)  # of the control's profile that are shown

#: One policy at one load, as live_statistics.py makes it; the 99th percentile of `adaptive` over the best one; device
#: time per row under `adaptive` and in batches of one.
Cell = Mapping[str, Any]
Tail = Mapping[str, Any]
Control = Mapping[str, Any]

EBIRD = {
    True: "`ebird` has its own list of six workers, of which the engine runs as many at once.\n"
    "The others have {at_once} of 32 rows.",
    False: "`ebird` is left out: with {threads} compute thread{threads:plural} the engine would run {bound} of its\n"
    "six workers at once. The others have {at_once} of 32 rows.",
}
WINDOW = {
    False: "`window` has the delay of {delays_ms:list} ms that serves the most rows a second.",
    True: "`window` is run with two delays: the one of {delays_ms:list} ms that serves the most rows a second, and as\n"
    '"least mean" the one with the least mean latency at that load, found by simulation on the measured batch times.\n'
    "If both are the same delay, it is run once.",
}
CONTROL = """\
Control: `{model}`, a convolutional network for which batches gain nothing (profiled ms a row by batch size: {sizes}),
one unit at once, at 30 % of the peak of a server that runs single rows ({rate:.0f} of {peak:.0f}/s). A row takes
{adaptive_ms:.3f} ms of the device under `adaptive`, in {batch:.2f} rows a batch, and {single_ms:.3f} ms in batches of
one: x {ratio:.3f}, {within} {most}; interval over seeds {low:.3f} to {high:.3f}: {verdict}. By the profile, for the
sizes that ran: x {mixed:.3f}."""

COLUMNS: dict[str, Column] = {
    "model": "{model}",
    "of the peak": "{share:.0%}",
    "rate/s": "{rate:.0f}",
    "policy": "{policy}",
    "mean": "{mean_ms:.2f}",
    "beyond the lowest": lambda cell: (
        f"{cell['beyond_ms']:+.2f} ± {cell['ci95_ms']:.2f}" if cell["beyond_ms"] else "lowest"
    ),
    "": lambda cell: "same" if same(cell) else "",
    "p99": "{p99_ms:.1f}",
    "rows a batch": "{batch:.2f}",
    "units at once": "{busy:.2f}",
    "lag": "{lag_ms:.2f}",
    "requests": "{requests}",
    "seeds": "{seeds}",
    "errors": "{errors}",
}


def same(cell: Cell) -> bool:
    """Whether the interval of the difference to the lowest mean contains 0."""
    return bool(cell["beyond_ms"] - cell["ci95_ms"] <= 0)


def within(ratio: float, limit: float) -> str:
    return "within" if ratio <= limit else "NOT within"


def verdict(low: float, high: float, limit: float) -> str:
    """Whether an interval lies below a limit, above it, or around it."""
    if high <= limit:
        return f"within {limit}"
    return f"NOT within {limit}" if low > limit else f"not distinguishable from {limit}"


def verdicts(cells: Sequence[Cell], tails: Sequence[Tail]) -> list[str]:
    """For each load: whether `adaptive` has the lowest mean, and how its 99th percentile compares with the best."""
    own = {(cell["model"], cell["share"]): cell for cell in cells if cell["policy"] == "adaptive"}
    lines = []
    for tail in tails:
        cell = own[tail["model"], tail["share"]]
        mean = "lowest" if not cell["beyond_ms"] else "the same as the lowest" if same(cell) else "NOT the lowest"
        best = "its own" if tail["best"] == "adaptive" else f"`{tail['best']}`"
        lines.append(
            f"{tail['model']}, {tail['share']:.0%}: `adaptive` has the mean {mean}; its p99 is {tail['ratio']:.2f} x "
            f"the best ({best}), {within(tail['ratio'], P99_WITHIN)} {P99_WITHIN}; interval {tail['low']:.2f} to "
            f"{tail['high']:.2f}: {verdict(tail['low'], tail['high'], P99_WITHIN)}"
        )
    return lines


def control_text(found: Control) -> str:
    known = {int(size): time for size, time in found["profiled_ms"].items()}
    return filled(
        CONTROL.replace("\n", " "),
        **found,
        sizes=", ".join(f"{size}: {known[size]:.2f}" for size in _SIZES if size in known),
        within=within(found["ratio"], PER_ROW_WITHIN),
        most=PER_ROW_WITHIN,
        verdict=verdict(found["low"], found["high"], PER_ROW_WITHIN),
    )


def missed(data: Data) -> list[str]:
    """Means count as missed only outside of their interval."""
    slower = [
        f"{cell['model']}, {cell['share']:.0%}: the mean of adaptive is not the lowest"
        for cell in data["cells"]
        if cell["policy"] == "adaptive" and not same(cell)
    ]
    far = [
        f"{tail['model']}, {tail['share']:.0%}: p99 is {tail['ratio']:.2f} x the best"
        for tail in data["tails"]
        if tail["ratio"] > P99_WITHIN
    ]
    dear = data["control"] is not None and data["control"]["ratio"] > PER_ROW_WITHIN
    return [*slower, *far, *(["control: a row takes more device time than in batches of one"] if dear else [])]


def name_of(settings: Mapping[str, Any]) -> str:
    """The name of page and JSON, with the number of units if fewer run at once than would fit."""
    at_once = settings["at_once"]
    return "policies-live" if at_once == settings["bound"] else f"policies-live-{at_once}"


def fill(data: Data) -> Mapping[str, object]:
    settings = data["settings"]
    return {
        "ebird": filled(EBIRD[settings["at_once"] == settings["bound"]], **settings),
        "window": filled(WINDOW[settings["least_mean"]], **settings),
        "peaks_of": ", ".join(f"`{model}` {rate:.0f}/s" for model, rate in data["peaks"].items()),
        "cells_table": table(COLUMNS, data["cells"]),
        "verdicts": bullets(verdicts(data["cells"], data["tails"])),
        "control_text": control_text(data["control"]) if data["control"] else "",
    }


PAGE = Page("policies-live", __file__, fill, missed)
