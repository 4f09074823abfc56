"""The figures of `make bench` as a page, and as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.common.page import Data, Page

Figure = Mapping[str, Any]  # see figures.py

HEADINGS = ("what", "median", "min – max", "target", "met", "note")


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


def cells(figure: Figure) -> list[str]:
    """The line of a figure, for both."""
    rounds = figure["rounds"]
    ends = f"{number(min(rounds))} – {number(max(rounds))}"
    return [figure["what"], middle(figure), ends, target(figure), met(figure), figure["note"]]


def show(report: Data, console: Console) -> None:
    """Print facts and figures."""
    for name, text in report["facts"].items():
        console.print(f"[bold]{name}[/]: {text}", highlight=False)
    shown = Table()
    for heading in HEADINGS:
        shown.add_column(heading, no_wrap=heading in ("median", "min – max"))
    for figures in report["cases"].values():
        for figure in figures:
            style = "" if figure["target"] is None else ("green" if figure["met"] else "red")
            shown.add_row(*cells(figure), style=style)
        shown.add_section()
    console.print(shown)
    for name, reason in report["failed"].items():
        console.print(f"[red]{name} could not be measured:[/] {reason}", highlight=False, markup=True)


PAGE = Page("http", __name__)
