"""The figures of `make bench` as a page, and as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.common.page import Column, Data, Page, joined, table

Figure = Mapping[str, Any]  # see figures.py


def number(value: float) -> str:
    """At least three significant digits, with thousands separators."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def middle(figure: Figure) -> str:
    unit = "" if figure["unit"] == "ratio" else f" {figure['unit']}"
    return f"{number(median(figure['rounds']))}{unit}"


def target(figure: Figure) -> str:
    wanted = figure["target"]
    if wanted is None:
        return ""
    aim = "" if wanted["aim"] is None else f", aim {wanted['aim']:g}"
    return f"{'at most' if wanted['at_most'] else 'at least'} {wanted['bound']:g}{aim}"


def met(figure: Figure) -> str:
    """Whether the target is met, and the aim; empty without a target."""
    wanted = figure["target"]
    if wanted is None:
        return ""
    if not figure["met"]:
        return "NO"
    return "yes, and the aim" if wanted["aim"] is not None and median(figure["rounds"]) >= wanted["aim"] else "yes"


COLUMNS: dict[str, Column] = {
    "what": "{what}",
    "median": middle,
    "min – max": lambda figure: f"{number(min(figure['rounds']))} – {number(max(figure['rounds']))}",
    "target": target,
    "met": met,
    "note": "{note}",
}


def show(report: Data, console: Console) -> None:
    """Print facts and figures."""
    for name, text in report["facts"].items():
        console.print(f"[bold]{name}[/]: {text}", highlight=False)
    shown = Table()
    for heading in COLUMNS:
        shown.add_column(heading, no_wrap=heading in ("median", "min – max"))
    for figures in report["cases"].values():
        for figure in figures:
            style = "" if figure["target"] is None else ("green" if figure["met"] else "red")
            cells = (
                column.format(**figure) if isinstance(column, str) else column(figure) for column in COLUMNS.values()
            )
            shown.add_row(*map(str, cells), style=style)
        shown.add_section()
    console.print(shown)
    for name, reason in report["failed"].items():
        console.print(f"[red]{name} could not be measured:[/] {reason}", highlight=False, markup=True)


def fill(data: Data) -> Mapping[str, object]:
    cases = [joined([f"## {name}", table(COLUMNS, figures)]) for name, figures in data["cases"].items()]
    failed = [f"`{name}` could not be measured: {reason}" for name, reason in data["failed"].items()]
    return {"cases_of": joined([*cases, *failed])}


PAGE = Page("http", __file__, fill)
