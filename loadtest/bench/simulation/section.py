"""A section of the page: what was run, its table, its figures as JSON. Sections can be made one by one."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Say = Callable[[str], None]

HEAD = """\
# The simulator, measured

Latencies here are of virtual time: they follow from the profile and the seed, and are the same on every machine. Wall
times, rates and memory are of the machine named. `python -m loadtest.bench.simulation` makes the page, with a name one
section of it.
"""


@dataclass
class Section:
    """`rows` below `headings` as texts; `data` is what else the JSON holds; `plot` a file beside the page."""

    name: str
    title: str
    text: str
    headings: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    plot: str = ""
    shell: Sequence[str] = ()  # command and output, in turn
    data: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)  # date and machine

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.text.strip(), ""]
        if self.headings:
            lines += [row(self.headings), row(["---"] * len(self.headings)), *map(row, self.rows), ""]
        if self.shell:
            lines += ["```", *self.shell, "```", ""]
        if self.plot:
            lines += [f"![{self.title}]({self.plot})", ""]
        facts = "; ".join(f"{name}: {text}" for name, text in self.facts.items())
        return "\n".join([*lines, f"<sub>`python -m loadtest.bench.simulation {self.name}`; {facts}</sub>", ""])


def keep(section: Section, folder: Path, order: Sequence[str]) -> None:
    """Put the section into `simulation.json`, in place of an earlier one, and write `simulation.md` anew."""
    folder.mkdir(parents=True, exist_ok=True)
    store = folder / "simulation.json"
    known: dict[str, Any] = json.loads(store.read_text(encoding="utf-8")) if store.exists() else {}
    known[section.name] = asdict(section)
    known = {name: known[name] for name in order if name in known}
    store.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sections = [Section(**stored).markdown() for stored in known.values()]
    (folder / "simulation.md").write_text("\n".join([HEAD, *sections]), encoding="utf-8")


def row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"
