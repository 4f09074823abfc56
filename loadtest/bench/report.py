"""The results as a table on the terminal, as Markdown and as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from .measure import Figure

METHOD = """\
Client and servers are processes of one machine and talk over loopback. The contenders of a ratio are alternated,
A B A B, each idle while the other is measured; a ratio is taken round by round, and its median is what is compared with
the target. Every answer has to be a 200. The client's ceiling is its rate against a server that sends one prepared
response without reading the request: where it is well above a rate, the client was not what limited it.
"""


@dataclass(frozen=True)
class Report:
    """One run. `failed` holds the reason for each case that could not be measured."""

    command: str
    date: str
    client: str
    rounds: int
    seconds: float
    machine: dict[str, str]
    cases: dict[str, list[Figure]]
    failed: dict[str, str]

    @property
    def facts(self) -> dict[str, str]:
        """The head of the report, in words."""
        rounds = f"{self.rounds} of {self.seconds:g} s"
        return {"command": self.command, "date": self.date, **self.machine, "client": self.client, "rounds": rounds}

    def as_json(self) -> dict[str, Any]:
        cases = {name: [figure.as_json() for figure in figures] for name, figures in self.cases.items()}
        return {**self.facts, "cases": cases, "failed": self.failed}


def number(value: float) -> str:
    """Three significant digits or more, thousands apart."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


def verdict(figure: Figure) -> str:
    """Empty without a target; says where the aim is reached too."""
    if figure.target is None:
        return ""
    if not figure.met:
        return "NO"
    aim = figure.target.aim
    return "yes, and the aim" if aim is not None and figure.median >= aim else "yes"


def cells(figure: Figure) -> tuple[str, ...]:
    median = f"{number(figure.median)} {figure.unit}" if figure.unit != "ratio" else number(figure.median)
    spread = f"{number(min(figure.rounds))} – {number(max(figure.rounds))}"
    return (
        figure.what,
        median,
        spread,
        "" if figure.target is None else str(figure.target),
        verdict(figure),
        figure.note,
    )


HEADINGS = ("what", "median", "min – max", "target", "met", "note")


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


def markdown(report: Report) -> str:
    lines = ["# HTTP serving, measured", "", METHOD]
    lines += [f"- {name}: {f'`{text}`' if name == 'command' else text}" for name, text in report.facts.items()]
    for name, figures in report.cases.items():
        lines += ["", f"## {name}", "", row(HEADINGS), row(("---",) * len(HEADINGS))]
        lines += [row(cells(figure)) for figure in figures]
    for name, reason in report.failed.items():
        lines += ["", f"`{name}` could not be measured: {reason}"]
    return "\n".join([*lines, ""])


def row(texts: tuple[str, ...]) -> str:
    return "| " + " | ".join(texts) + " |"


def write(report: Report, folder: Path) -> list[Path]:
    """`http.md` and `http.json` in `folder`; returns their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    page, data = folder / "http.md", folder / "http.json"
    page.write_text(markdown(report), encoding="utf-8")
    data.write_text(json.dumps(report.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [page, data]
