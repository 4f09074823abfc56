"""Figures of tasks and classes against numbers worked out by hand."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from bench.made import MS

from loadtest.disb.figures import Outcome, by_class, by_task, outcome_figures
from loadtest.disb.schedule import Played
from loadtest.disb.workload import Klass, Load, Task


def outcome(
    ident: str, klass: Klass, launches: list[tuple[int, int, int]], alone: float | None, **more: Any
) -> Outcome:
    """Launches are (due, launched, ended) in ms; one that ended at -1 is an error."""
    played = Played(Task(ident, Load("poisson", 1.0), "m", klass=klass), dropped=more.get("dropped", 0))
    for due, launched, ended in launches:
        played.due.append(due * MS)
        played.launched.append(launched * MS)
        played.ended.append(abs(ended) * MS)
        played.right.append(ended >= 0)
    wrong = sum(ended < 0 for *_, ended in launches)
    errors = Counter({"status 429": wrong}) if wrong else Counter[str]()
    return Outcome(played, alone, errors, {"status 429": "status 429: full"} if wrong else {})


FIRST = outcome("a", "realtime", [(0, 0, 10), (20, 25, 45), (30, 45, -50)], 10.0, dropped=2)
SECOND = outcome("b", "realtime", [(900, 900, 940), (990, 990, 1030)], 20.0)
BULK = outcome("c", "best_effort", [(0, 0, 500)], None)


def test_figures_of_a_task() -> None:
    found = outcome_figures([FIRST], 1.0)
    assert found == {
        "launched": 3, "completed": 2, "errors": 1, "dropped": 2, "throughput": 2.0, "mean_ms": 15.0, "p50_ms": 10.0,
        "p99_ms": 20.0, "alone_ms": 10.0, "over_alone": 1.5, "behind_ms": pytest.approx(20 / 3),
    }  # fmt: skip


def test_classes_hold_all_requests_of_their_tasks() -> None:
    found = by_class([FIRST, SECOND, BULK], 1.0)
    assert list(found) == ["realtime", "best_effort", "all"]
    both = found["realtime"]
    assert (both["launched"], both["throughput"]) == (5, 3.0)
    assert both["mean_ms"] == (10 + 20 + 40 + 40) / 4
    assert (both["alone_ms"], both["over_alone"]) == (15.0, 27.5 / 15)
    assert found["best_effort"]["over_alone"] is None
    assert found["all"]["completed"] == 5
    assert list(by_class([BULK], 1.0)) == ["best_effort", "all"]


def test_json_names_the_task_and_its_errors() -> None:
    (found,) = by_task([FIRST], 1.0)
    assert (found["task"], found["model"], found["class"], found["load"]) == ("a", "m", "realtime", "poisson")
    assert found["error_examples"] == {"status 429": "status 429: full"}
