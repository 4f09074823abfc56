"""The figures of `make bench` as a page, and as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench.http_data import Figure, Report
from loadtest.common import markdown

METHOD = """\
Client and servers are processes of one machine and talk over loopback. What a ratio compares is measured in
alternation, A B A B, each idle while the other is measured; a ratio is taken round by round, and its median is what is
compared with the target. Every answer has to be a 200; only `refusals` counts those with status 429. `latency` is
measured by a client with one blocking socket. The client's ceiling is its rate against a server that sends one prepared
response without reading the request: where it is well above a rate, the client was not what limited it. What each row
means is told in [Measuring a server](../bench.md#the-figures-of-make-bench).
"""

HEADINGS = ("what", "median", "min – max", "target", "met", "note")


def number(value: float) -> str:
    """At least three significant digits, with thousands separators."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def verdict(figure: Figure) -> str:
    """Whether the target is met, and the aim; empty without a target."""
    if figure.target is None:
        return ""
    if not figure.met:
        return "NO"
    aim = figure.target.aim
    return "yes, and the aim" if aim is not None and figure.median >= aim else "yes"


def cells(figure: Figure) -> tuple[str, ...]:
    median = f"{number(figure.median)} {figure.unit}" if figure.unit != "ratio" else number(figure.median)
    spread = f"{number(min(figure.rounds))} – {number(max(figure.rounds))}"
    target = "" if figure.target is None else str(figure.target)
    return figure.what, median, spread, target, verdict(figure), figure.note


def show(report: Report, console: Console) -> None:
    """Print facts and figures."""
    for name, text in report.facts.items():
        console.print(f"[bold]{name}[/]: {text}", highlight=False)
    table = Table()
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading in ("median", "min – max"))
    for figures in report.cases.values():
        for figure in figures:
            style = "" if figure.target is None else ("green" if figure.met else "red")
            table.add_row(*cells(figure), style=style)
        table.add_section()
    console.print(table)
    for name, reason in report.failed.items():
        console.print(f"[red]{name} could not be measured:[/] {reason}", highlight=False, markup=True)


def write(data: Mapping[str, Any], folder: Path) -> list[str]:
    """Write `http.md` from a stored report."""
    report = Report.from_dict(data)
    parts = ["# HTTP serving, measured", METHOD, markdown.facts_list(report.facts)]
    for name, figures in report.cases.items():
        parts += [f"## {name}", markdown.table(HEADINGS, map(cells, figures))]
    parts += [f"`{name}` could not be measured: {reason}" for name, reason in report.failed.items()]
    return [markdown.write(parts, folder / "http.md")]
