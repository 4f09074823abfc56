"""A page of docs/bench: a Markdown text, as a template of Jinja, filled from the figures that a run stored.

The text lies beside the module that declares the page, with the suffix `.template`. It sees the stored figures, the
run's settings, the functions and constants of that module, and what is below: `head` and filters such as `ms`. Always
there are `facts` (command, date, machine) and `missed` (the targets that the figures miss, as a list).
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

Data = dict[str, Any]
Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """`name` is that of the page and of its JSON; `module` that of the module whose text is filled.

    `missed` lists the targets that the figures miss, and `draw` writes the plots, whose names begin with that of the
    page, into a folder.
    """

    name: str
    module: str
    missed: Callable[[Data], Sequence[str]] = lambda data: ()
    draw: Callable[[Data, Path], None] = lambda data, folder: None

    def write(self, data: Data, folder: Path) -> None:
        """Write the page and its plots into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        self.draw(data, folder)
        (folder / f"{self.name}.md").write_text(self.text(data), encoding="utf-8")

    def text(self, data: Data) -> str:
        names = vars(sys.modules[self.module])
        template = Path(names["__file__"]).with_suffix(".template").read_text(encoding="utf-8")
        fields = {
            **names, **data, **data.get("settings", {}), "data": data,
            "facts": facts_list(data.get("facts", {})), "missed": missed_list(self.missed(data)),
        }  # fmt: skip
        filled = _ENVIRONMENT.from_string(template).render(fields)
        return re.sub(r"\n{3,}", "\n\n", filled).strip("\n") + "\n"


def ms(value: float) -> str:
    """Milliseconds with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def standard_error(values: Iterable[float]) -> float:
    """Standard error of the mean of independent values; 0 for one."""
    found = list(values)
    return float(np.std(found, ddof=1) / np.sqrt(len(found))) if len(found) > 1 else 0.0


def fmt(value: Any, form: str = "ms") -> str:
    """A value in one of Python's formats, or in milliseconds."""
    return ms(value) if form == "ms" else format(value, form)


def spread(values: Iterable[float], form: str = "ms") -> str:
    """The median, with the least and the largest value in brackets."""
    found = list(values)
    middle, low, high = (fmt(one, form) for one in (median(found), min(found), max(found)))
    return f"{middle} ({low} to {high})"


def listed(values: Iterable[Any]) -> str:
    return ", ".join(f"{one:g}" if isinstance(one, float) else str(one) for one in values)


def grouped(rows: Iterable[Figures], key: str) -> dict[Any, list[Figures]]:
    """The rows by one of their figures, in their order."""
    found: dict[Any, list[Figures]] = {}
    for one in rows:
        found.setdefault(one[key], []).append(one)
    return found


def head(*headings: str | Iterable[object]) -> str:
    """The first two lines of a table. Several headings may be given as one: a list, or the keys of a mapping."""
    names = [str(name) for some in headings for name in ([some] if isinstance(some, str) else some)]
    return "\n".join(row(cells) for cells in (names, ["---"] * len(names)))


def row(cells: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def lines_table(headings: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A table from its cells."""
    return "\n".join([head(*headings), *map(row, rows)])


def missed_list(lines: Sequence[str]) -> str:
    return "Targets missed:\n\n" + "\n".join(f"- {line}" for line in lines) if lines else "All targets are met."


def facts_list(facts: Mapping[str, str]) -> str:
    """Command, date and machine, as stored with the figures."""
    return "\n".join(f"- {name}: {text}" for name, text in facts.items())


def measured(section: Figures, command: str) -> str:
    """Of a page in sections: how and where one of them was measured."""
    facts = "; ".join(f"{fact}: {text}" for fact, text in section["facts"].items())
    return f"<sub>`python -m {command}`; {facts}</sub>"


_ENVIRONMENT = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined, autoescape=False)
_ENVIRONMENT.filters |= {
    "fmt": fmt, "ms": ms, "mean": fmean, "median": median, "spread": spread, "listed": listed,
    "error": lambda values: f"{ms(fmean(values))} ± {ms(standard_error(values))}",
    "plural": lambda count: "" if count == 1 else "s",
    "row": row, "grouped": grouped,
}  # fmt: skip
_ENVIRONMENT.globals |= {
    "head": head, "len": len, "min": min, "max": max, "sum": sum, "zip": zip, "float": float, "measured": measured,
    "pairwise": itertools.pairwise, "standard_error": standard_error,
}  # fmt: skip
