"""The page of `lengths`: what picking rows by length brings, against filling by count, and how far the best is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.common import markdown
from loadtest.common.markdown import ms, table

LOST_MS = 2_000.0  # a mean beyond it: more comes than is served
CLOSED = 1.8  # of the rows per second by count, at least
NEAR = 1.01  # of the mean by count, at most, whatever the load
HALF = 0.5  # of the mean by count at 90 %, at most
#: For which the targets of more rows and lower latencies are meant.
TARGET = "encoder"

HEAD = """\
# Rows of different lengths, simulated

Where the longest row of a batch decides what it costs, it matters which rows go together. `adaptive` picks those around
the oldest by their lengths ([stages](../stages.md#which-rows-go-together)). It is compared with itself filling batches
by count (`reorder = false`), with `no_wait` ("all that waits") and with buckets of similar lengths: those of
`dva_input`, and `adaptive` with `length_buckets`. Everything is simulated; one unit at a time. `encoder` is a 6-layer
encoder measured on one CPU thread ([times](profiles/encoder-lengths.json)). b rows whose longest has L tokens take the
milliseconds that a device is named after. The Berts are those of [stages](stages.md).
"""
SATURATED = """\
## A closed loop

{clients} clients send a request as soon as the last one is answered: rows per second. "Windows" are a yardstick: of 64
rows that wait always so many go that have the least padding, the oldest or not, for the best size. That lets rows wait
for ever, which ours does not.
"""
OPEN = """\
## Poisson arrivals

Mean and 99 % latency in ms, {seeds} seeds of {requests:,} requests. Loads are shares of what the better way by count
serves in the closed loop. "-": more comes than is served. "mean" compares "by length" with "by count".
"""
SMALL = """\
## A few rows

So many rows all wait and no others come. Mean latency over that of the optimum, over all orders of all batches, which
a search of all subsets finds; the mean of {cases} cases. The policies expect that others may come.
"""
TARGETS = """\
## Targets

By length the closed loop is to serve {closed:g} times the rows by count; mean and 99 % latency of `{target}` are to be
lower at each load up to 0.9, and the mean at 0.9 at most {half:g} times that by count. For no device at no load the
mean is to be above {near:g} times that by count.
"""


def _both(cell: Mapping[str, float] | None) -> str:
    return "-" if cell is None else f"{ms(cell['mean_ms'])} / {ms(cell['p99_ms'])}"


def _ratio(cells: Mapping[str, Any], figure: str = "mean_ms") -> float | None:
    ours, count = cells["by length"], cells["by count"]
    return None if ours is None or count is None else ours[figure] / count[figure]


def saturated(studies: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for found in studies:
        closed, windows = found["closed"], found.get("windows")
        best = max(windows, key=lambda size: windows[size]) if windows else None
        rows.append(
            [found["device"], *(f"{closed[way]:.0f}" for way in closed),
             f"{closed['by length'] / closed['by count']:.2f} x",
             f"{windows[best]:.0f} (size {best})" if windows and best else ""]
        )  # fmt: skip
    return table(["", *studies[0]["closed"], "by length / by count", "windows"], rows)


def latencies(found: Mapping[str, Any]) -> str:
    rows = []
    for load, cells in found["loads"].items():
        ratio = _ratio(cells)
        rows.append([f"{float(load):g}", *map(_both, cells.values()), f"{ratio:.2f} x" if ratio else ""])
    return table(["load", *next(iter(found["loads"].values())), "mean"], rows)


def small(studies: Sequence[Mapping[str, Any]]) -> str:
    measured = [found for found in studies if "few" in found]
    rows = [
        [found["device"], f"{case['rows']}", f"{case['by count']:.3f}", f"{case['by length']:.3f}"]
        for found in measured
        for case in found["few"]
    ]
    return table(("", "rows", "by count", "by length"), rows)


def missed(data: Mapping[str, Any]) -> list[str]:
    """The targets that are missed, a line each."""
    lines = []
    for found in data["studies"]:
        name = found["device"]
        gain = found["closed"]["by length"] / found["closed"]["by count"]
        if name == TARGET and gain < CLOSED:
            lines.append(f"{name}, closed loop: {gain:.2f} x")
        for load, cells in found["loads"].items():
            mean, p99 = _ratio(cells), _ratio(cells, "p99_ms")
            if mean is None or p99 is None:
                continue
            if mean > NEAR:
                lines.append(f"{name}, load {load}: mean {mean:.3f} x")
            if name == TARGET and float(load) < 1 and max(mean, p99) >= 1:
                lines.append(f"{name}, load {load}: mean {mean:.3f} x, 99 % {p99:.3f} x, not lower")
            if name == TARGET and load == "0.9" and mean > HALF:
                lines.append(f"{name}, load {load}: mean {mean:.2f} x, not {HALF:g} x")
    return lines


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    settings, studies = data["settings"], data["studies"]
    faults = missed(data)
    parts = [HEAD, SATURATED.format(**settings), saturated(studies), OPEN.format(**settings)]
    for found in studies:
        parts += [f"### {found['device']}, lengths `{found['lengths']}`, 1 is {found['peak']:.0f}/s", latencies(found)]
    parts += [
        SMALL.format(**settings), small(studies), TARGETS.format(closed=CLOSED, half=HALF, near=NEAR, target=TARGET),
        "Missed: " + ("; ".join(faults) if faults else "none") + ".", WHY, markdown.facts_list(data["facts"]),
    ]  # fmt: skip
    return [markdown.write(parts, folder / "lengths.md")]


WHY = """\
At the loads of the open loop batches are small: by count, too, two or three rows go together at 0.9, and a row alone
takes most of its latency. So the mean cannot be halved there, whatever the order; the gain is in what more is served.
"""
