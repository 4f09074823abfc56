"""The page that compares what `starling size` says with a server: a row for each model, format and load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.common.page import Column, Data, Page, bullets, table

WITHIN = 0.25  # of the live figure
QUIET_CORES = 0.1  # of other processes: beside more, a load says nothing of what it is compared with
_NONE = "So none is judged here."
FIGURES = ("p50_ms", "p99_ms")

#: One load: latencies in ms, live and as `size` says (`said_...`), and rows a batch. `others`: cores that other
#: processes used, None where the platform does not report it.
Row = dict[str, Any]


def off(row: Row, figure: str) -> float:
    """What `size` says of a figure over the live one, less one; infinity where it says that the queue never settles."""
    said = row[f"said_{figure}"]
    return float("inf") if said is None else float(said / row[figure] - 1)


def undisturbed(row: Row) -> bool:
    return row["others"] is None or row["others"] < QUIET_CORES


def said(row: Row) -> str:
    """The median and the 99th percentile, and how far off they are."""
    return ", ".join(
        "never settles" if row[f"said_{name}"] is None else f"{row[f'said_{name}']:.2f} ({off(row, name):+.0%})"
        for name in FIGURES
    )


def rows_of(data: Data) -> list[Row]:
    return [row for case in data["cases"] for row in case["rows"]]


def missed(data: Data) -> Sequence[str]:
    """The figures that are too far off, of loads that were not disturbed."""
    return [
        f"{row['case']}, {row['share']:.0%} of the peak: {name[:3]} {off(row, name):+.1%}"
        for row in filter(undisturbed, rows_of(data))
        for name in FIGURES
        if abs(off(row, name)) > WITHIN
    ]


def fill(data: Data) -> Mapping[str, object]:
    columns: dict[str, Column] = {
        "requests": "{case}",
        "of the peak": "{share:.0%}",
        "rate/s": "{rate:.0f}",
        "p50, live": "{p50_ms:.2f}",
        "says": lambda row: _said(row, "p50_ms"),
        "p99, live": "{p99_ms:.2f}",
        "says ": lambda row: _said(row, "p99_ms"),
        "rows a batch, live / says": lambda row: f"{row['batch']:.2f} / {row['said_batch'] or 0:.2f}",
        "others, cores": lambda row: "" if row["others"] is None else f"{row['others']:.2f}",
    }
    costs: dict[str, Column] = {
        "requests": "{case}",
        "peak/s": "{peak:.0f}",
        "loop, a request": lambda case: f"{case['http']['call_us']:.0f}",
        "loop, a batch": lambda case: f"{case['http']['batch_us']:.0f}",
        "helper thread, a request": lambda case: f"{case['http']['decode_us']:.0f}",
        "a group of texts": lambda case: f"{case['http']['group_us']:.0f}",
        "the rest of a lone request": lambda case: f"{case['http']['path_us']:.0f}",
        "batches, over the profile": lambda case: f"{case['http']['scale']:.2f}",
        "more beside a busy thread": lambda case: f"{case['http']['slowed']:.0%}",
    }
    rows = rows_of(data)
    judged = [off(row, name) for row in filter(undisturbed, rows) for name in FIGURES]
    kept = sum(abs(one) <= WITHIN for one in judged)
    return {
        "loads": table(columns, rows),
        "costs": table(costs, data["cases"]),
        "verdict": f"Of the other {len(judged)} figures {kept} are within {WITHIN:.0%}." if judged else _NONE,
        "disturbed": sum(not undisturbed(row) for row in rows),
        "count": len(rows),
        "missed": bullets(missed(data)),
        "cores": QUIET_CORES,
    }


def _said(row: Row, figure: str) -> str:
    said = row[f"said_{figure}"]
    return "never settles" if said is None else f"{said:.2f} ({off(row, figure):+.0%})"


PAGE = Page("live-vs-sim", __file__, fill, missed)
