"""Writes Markdown pages: tables, formatted numbers, and the page itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join([row(headings), row(["---"] * len(headings)), *map(row, rows)])


def facts_list(facts: Mapping[str, str]) -> str:
    """Command, date and machine, as stored with the figures."""
    return "\n".join(f"- {name}: {text}" for name, text in facts.items())


def write(parts: Iterable[str], path: Path) -> str:
    """Write the parts as one page, separated by empty lines; returns the file's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    return path.name


def ms(value: float) -> str:
    """Milliseconds with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def plural(count: int) -> str:
    """The plural ending of a counted noun."""
    return "" if count == 1 else "s"
