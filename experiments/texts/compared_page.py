"""The page of `compared`: rows per second and latencies of texts, served and by the library."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from loadtest.common.page import Column, Data, Page, ms, spread, table

NAMES = {"vectors": "Vectors, `/v1/embeddings`", "ranker": "Scores, `/v1/rerank`"}
LIBRARY = "sentence-transformers"

ONCE: dict[str, Column] = {
    "": lambda row: row[0],
    "rows/s": lambda row: spread(row[1]["once"][row[0]], ",.0f"),
    "of the library's": lambda row: f"{over_library(row[1], row[0]):.2f} x",
}
MANY: dict[str, Column] = {
    "": lambda row: row[0],
    "rows/s": lambda row: spread(row[1]["many"][row[0]]["rows_per_s"], ",.0f"),
    "mean, ms": lambda row: ms(row[1]["many"][row[0]]["mean_ms"]),
    "50 %, ms": lambda row: ms(row[1]["many"][row[0]]["p50_ms"]),
    "99 %, ms": lambda row: ms(row[1]["many"][row[0]]["p99_ms"]),
}


def over_library(task: Mapping[str, Any], way: str) -> float:
    """Rows per second of all texts at once over those of the library."""
    return median(task["once"][way]) / median(task["once"][LIBRARY])


def missed(data: Data) -> list[str]:
    """By length is no slower than by count with many clients, and has no higher 99th percentile."""
    lines = []
    for name, task in data["tasks"].items():
        length, count = task["many"]["by length"], task["many"]["by count"]
        if median(length["rows_per_s"]) < median(count["rows_per_s"]):
            lines.append(f"{name}: fewer rows/s by length than by count")
        if length["p99_ms"] > count["p99_ms"]:
            lines.append(f"{name}: 99 % {ms(length['p99_ms'])} ms by length, {ms(count['p99_ms'])} ms by count")
    return lines


def fill(data: Data) -> Mapping[str, object]:
    parts = []
    for name, task in data["tasks"].items():
        rows = [(way, task) for way in task["once"]]
        each = "one text" if task["rows"] == 1 else f"a query and {task['rows']} documents"
        parts.append(
            f"## {NAMES[name]}\n\nAll texts in one call:\n\n{table(ONCE, rows)}\n\n"
            f"{task['clients']} clients, each with {each} a request:\n\n{table(MANY, rows)}"
        )
    return {"sections": "\n\n".join(parts)}


PAGE = Page("texts", __file__, fill, missed)
