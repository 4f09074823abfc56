"""What came of a workload, by task and by class: figures, a table, and one JSON object. Of both drivers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .stats import Column, percentile
from .workload import CLASSES
from .workload_schedule import Played

_MS = 1e6
Figures = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one task. `alone_ms`: its mean latency alone, if it is known. `errors`: by kind; `examples`: the
    full text of the first of each kind."""

    played: Played
    alone_ms: float | None = None
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    @property
    def latency_ns(self) -> Column:
        """From the launch to the answer, of right answers."""
        return self._right(self.played.ended) - self._right(self.played.launched)

    @property
    def behind_ns(self) -> Column:
        """By how much launches were later than their instants, for the answer before them."""
        return np.array(self.played.launched, np.int64) - np.array(self.played.due, np.int64)

    def answers(self, end_ns: int) -> int:
        """Right answers that came until `end_ns`."""
        return int((self._right(self.played.ended) <= end_ns).sum())

    def _right(self, column: list[int]) -> Column:
        kept: Column = np.array(column, np.int64)[np.array(self.played.right, bool)]
        return kept


def figures(outcomes: Sequence[Outcome], time_s: float) -> Figures:
    """Of one task, or of several together.

    `over_alone` is mean latency over the mean that the same requests would have alone. `throughput` counts answers
    until the end of the run. Unknown figures are None.
    """
    latency = np.concatenate([one.latency_ns for one in outcomes])
    behind = np.concatenate([one.behind_ns for one in outcomes])
    alone_ms: float | None = None
    if len(latency) and all(one.alone_ms is not None for one in outcomes if len(one.latency_ns)):
        alone_ms = sum(len(one.latency_ns) * (one.alone_ms or 0.0) for one in outcomes) / len(latency)
    mean_ms = float(latency.mean()) / _MS if len(latency) else None
    return {
        "launched": len(behind),
        "completed": len(latency),
        "errors": sum(one.errors.total() for one in outcomes),
        "dropped": sum(one.played.dropped for one in outcomes),
        "throughput": sum(one.answers(round(time_s * 1e9)) for one in outcomes) / time_s,
        "mean_ms": mean_ms,
        "p50_ms": percentile(latency, 0.5),
        "p99_ms": percentile(latency, 0.99),
        "alone_ms": alone_ms,
        "over_alone": mean_ms / alone_ms if mean_ms is not None and alone_ms else None,
        "behind_ms": float(behind.mean()) / _MS if len(behind) else None,
    }


def by_task(outcomes: Sequence[Outcome], time_s: float) -> list[Figures]:
    return [
        {
            "task": one.played.task.id, "model": one.played.task.model, "class": one.played.task.klass,
            "load": one.played.task.load.kind, **figures([one], time_s), "error_examples": one.examples,
        }
        for one in outcomes
    ]  # fmt: skip


def by_class(outcomes: Sequence[Outcome], time_s: float) -> dict[str, Figures]:
    """The classes that have tasks, and `all`."""
    found: dict[str, Figures] = {}
    for klass in CLASSES:
        group = [one for one in outcomes if one.played.task.klass == klass]
        if group:
            found[klass] = figures(group, time_s)
    return {**found, "all": figures(outcomes, time_s)}


_COLUMNS = (
    ("launched", "launched", "d"), ("answers", "completed", "d"), ("errors", "errors", "d"),
    ("dropped", "dropped", "d"), ("answers/s", "throughput", ".2f"), ("mean ms", "mean_ms", ".3f"),
    ("p50", "p50_ms", ".3f"), ("p99", "p99_ms", ".3f"), ("alone", "alone_ms", ".3f"), ("x alone", "over_alone", ".3f"),
    ("behind", "behind_ms", ".3f"),
)  # fmt: skip


def table(outcomes: Sequence[Outcome], time_s: float) -> str:
    """A line for each task and for each class, and the first error of each kind."""
    lines = [["task", "class", *(title for title, _, _ in _COLUMNS)]]
    lines += [[found["task"], found["class"], *_cells(found)] for found in by_task(outcomes, time_s)]
    lines += [[f"all {klass}", "", *_cells(found)] for klass, found in by_class(outcomes, time_s).items()]
    lines[-1][0] = "all"
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = [
        "  ".join(cell.ljust(width) if at < 2 else cell.rjust(width)
                  for at, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    ]  # fmt: skip
    for one in outcomes:
        text += [f"{one.played.task.id}: {count} x {one.examples[kind]}" for kind, count in one.errors.most_common()]
    return "\n".join(text)


def _cells(found: Figures) -> list[str]:
    return ["-" if found[name] is None else format(found[name], form) for _, name, form in _COLUMNS]
