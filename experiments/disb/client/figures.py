"""What came of the clients of a workload: figures by task and by class."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadtest.generator.stats import Column, percentile

from .schedule import Played
from .workload import CLASSES

_MS = 1e6


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


def outcome_figures(outcomes: Sequence[Outcome], time_s: float) -> dict[str, Any]:
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


def by_class(outcomes: Sequence[Outcome], time_s: float) -> dict[str, dict[str, Any]]:
    """The classes that have tasks, and `all`."""
    found: dict[str, dict[str, Any]] = {}
    for klass in CLASSES:
        group = [one for one in outcomes if one.played.task.klass == klass]
        if group:
            found[klass] = outcome_figures(group, time_s)
    return {**found, "all": outcome_figures(outcomes, time_s)}
