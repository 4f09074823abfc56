"""A page of docs/bench: a Markdown text with fields in braces, filled from the figures that a run stored.

The text is a file beside the module that declares the page, with the suffix `.template`. Its fields are the stored
figures, the run's settings, and what the page's `fill` adds: tables, and values computed from the figures. Always there
are `facts` (command, date, machine) and `missed` (the targets that the figures miss, as a list).
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

Data = dict[str, Any]
Figures = Mapping[str, Any]
#: A column of a table: a format over the keys of its row, or a function of the row.
Column = str | Callable[[Any], object]


def _nothing(data: Data) -> Mapping[str, object]:
    return {}


def _no_plots(data: Data, folder: Path) -> None:
    """For pages without plots."""


def _no_targets(data: Data) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Page:
    """`name` is that of the page and of its JSON; `module` the file that declares it, whose text lies beside it.

    `fill` computes fields of the text, `missed` lists the targets that the figures miss, and `draw` writes the plots,
    whose names begin with that of the page, into a folder.
    """

    name: str
    module: str
    fill: Callable[[Data], Mapping[str, object]] = _nothing
    missed: Callable[[Data], Sequence[str]] = _no_targets
    draw: Callable[[Data, Path], None] = _no_plots

    def write(self, data: Data, folder: Path) -> None:
        """Write the page and its plots into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.draw(data, folder)
        (folder / f"{self.name}.md").write_text(self.text(data), encoding="utf-8")

    def text(self, data: Data) -> str:
        fields = {
            **data, **data.get("settings", {}), "facts": facts_list(data.get("facts", {})),
            "missed": missed_list(self.missed(data)), **self.fill(data),
        }  # fmt: skip
        template = Path(self.module).with_suffix(".template").read_text(encoding="utf-8")
        return joined(filled(template, **fields).split("\n\n")) + "\n"


class _Formatter(string.Formatter):
    """str.format with formats of our own, see `FORMATS`, and with keys as JSON has them: `{times_ms[32]}` is a text."""

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        name, *keys = field_name.replace("]", "").split("[")
        found = kwargs[name]
        for key in keys:
            found = found[int(key)] if isinstance(found, list | tuple) else found[key]
        return found, name

    def format_field(self, value: Any, format_spec: str) -> Any:
        known = FORMATS.get(format_spec)
        return super().format_field(value, format_spec) if known is None else known(value)


def filled(template: str, /, **fields: object) -> str:
    """`template.format(**fields)`, with the formats of `FORMATS` too."""
    return _Formatter().vformat(template, (), fields)


def ms(value: float) -> str:
    """Milliseconds with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plural(count: int) -> str:
    """The plural ending of a counted noun."""
    return "" if count == 1 else "s"


def standard_error(values: Sequence[float]) -> float:
    """Standard error of the mean of independent values; 0 for one."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def spread(values: Sequence[float], form: str = "ms") -> str:
    """The median, with the least and the largest value in brackets."""
    middle, low, high = (filled(f"{{value:{form}}}", value=one) for one in (median(values), min(values), max(values)))
    return f"{middle} ({low} to {high})"


FORMATS: dict[str, Callable[[Any], str]] = {
    "ms": ms,
    "mean": lambda values: ms(fmean(values)),
    "error": lambda values: f"{ms(fmean(values))} ± {ms(standard_error(values))}",
    "list": lambda values: ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values),
    "plural": plural,
}


def table(columns: Mapping[str, Column], rows: Iterable[Any]) -> str:
    """A table from its columns by heading, with a line for each of `rows`."""
    return lines_table(list(columns), ([_cell(column, row) for column in columns.values()] for row in rows))


def _cell(column: Column, row: Any) -> str:
    return filled(column, **row) if isinstance(column, str) else str(column(row))


def grid(corner: str, rows: Iterable[Any], columns: Mapping[Any, str], cell: Callable[[Any, Any], object]) -> str:
    """A table whose cells depend on row and column. `columns` gives the headings, `corner` that of the rows' names."""
    return lines_table(
        [corner, *columns.values()], ([str(row), *(str(cell(row, column)) for column in columns)] for row in rows)
    )


def lines_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table from the texts of its cells."""
    return "\n".join(f"| {' | '.join(texts)} |" for texts in (headings, ["---"] * len(headings), *rows))


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def missed_list(lines: Sequence[str]) -> str:
    return f"Targets missed:\n\n{bullets(lines)}" if lines else "All targets are met."


def joined(parts: Iterable[str]) -> str:
    """Parts of a page with one empty line between them; empty parts leave none."""
    return "\n\n".join(part.strip("\n") for part in parts if part.strip())


def facts_list(facts: Mapping[str, str]) -> str:
    """Command, date and machine, as stored with the figures."""
    return bullets(f"{name}: {text}" for name, text in facts.items())


def section_facts(data: Data, module: str) -> dict[str, str]:
    """Fields of a page in sections: under `NAME_facts`, how and where each was measured."""
    lines = {
        name: "; ".join(f"{fact}: {text}" for fact, text in found["facts"].items())
        for name, found in data.items()
        if name != "facts"
    }
    return {f"{name}_facts": f"<sub>`python -m {module} {name}`; {line}</sub>" for name, line in lines.items()}
