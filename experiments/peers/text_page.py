"""The page of a BERT by its text beside a hand-written endpoint."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from loadtest.common.page import Column, Data, Page, spread, table


def fill(data: Data) -> Mapping[str, object]:
    runs = data["runs"]
    closed = {name: [run["per_s"] for run in loads["closed"]] for name, loads in runs.items()}
    ours, *theirs = closed
    times = []
    for name in theirs:
        ratio = median(mine / its for mine, its in zip(closed[ours], closed[name], strict=True))
        times.append(f"{ratio:.1f} times as many as {name}")

    def figures(load: str, figure: str, form: str = "ms") -> Column:
        return lambda name: spread([run[figure] for run in runs[name][load]], form)

    columns: dict[str, Column] = {
        "server": lambda name: name,
        f"requests/s, {data['settings']['connections']} connections": figures("closed", "per_s", ",.0f"),
        "CPU of the server, ms a request": figures("closed", "cpu_ms"),
        "p99, ms": figures("closed", "p99_ms"),
    }
    for rate in data["rates"]:
        columns[f"{rate:g}/s: p50, ms"] = figures(f"{rate:g}", "p50_ms")
        columns[f"{rate:g}/s: p99, ms"] = figures(f"{rate:g}", "p99_ms")
    failed = sum(run["failed"] for loads in runs.values() for each in loads.values() for run in each)
    return {"servers": table(columns, runs), "times_text": " and ".join(times), "failed": failed}


PAGE = Page("text", __file__, fill)
