"""What the page is told is a function of what is counted, and all of it is JSON."""

from __future__ import annotations

from typing import Any

from test_http.catalog import FakeServed, served, spec

from app.contract import IndexEntry, Plan
from app.observe.metrics import ModelStats
from app.observe.snapshot import Gauges, Snapshot
from app.observe.ui import events

MS = 1_000_000
ECHO = served("echo", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))


def gauges(model: str = "echo", version: str = "1") -> Gauges:
    stats = ModelStats(model, version)
    stats.whole["realtime"].ran(0, "idle", "", 2, (1 * MS, 2 * MS, 3 * MS))
    stats.call_ran(5 * MS, (1 * MS, 2 * MS, 3 * MS), "realtime")
    stats.call_answered("ok", 12 * MS, "")
    stats.call_answered("queue_full", 1 * MS, "best_effort")
    return Gauges(stats, 3, 2, preferred=4, rate=7.5, slots_used=5, waiting={"realtime": 1, "best_effort": 2})


def plan(program: int = 0, **more: Any) -> Plan:
    return Plan(program, (2 * MS, 3 * MS), "measured", 1.5, 20_000, **more)


def test_models_have_their_state_and_what_they_are_planned_with() -> None:
    index = [IndexEntry("broken", "1", "UNAVAILABLE", "no <b>inputs</b>"), IndexEntry("echo", "1", "READY")]
    tables = ((0, *range(1, 300)), (0, 0, *range(2, 300)))
    now = events.seen(index, Snapshot([gauges()], []), [plan(loads=(0.1, 0.5), tables=tables, level=1)])
    broken, echo = events.models(now, [ECHO])["models"]
    assert broken == {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no <b>inputs</b>"}
    assert (echo["batch_ms"], echo["origin"], echo["loads"]) == ([2.0, 3.0], "measured", (0.1, 0.5))
    assert [len(table) for table in echo["tables"]] == [65, 65]  # twice the largest batch, and none waiting
    assert echo["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["rows", "4"]}]
    assert echo["example"]["inputs"][0]["data"] == [[1.0] * 4]
    assert (echo["sends"], echo["writes"], echo["streams"], echo["cell"]) == ("values", False, False, False)


def test_a_model_that_is_going_has_no_plan_to_show() -> None:
    """It is counted until it has drained, and is no longer among those that serve."""
    index = [IndexEntry("echo", "1", "UNLOADING")]
    now = events.seen(index, Snapshot([gauges()], []), [plan()])
    found: list[FakeServed] = []
    assert events.models(now, found)["models"] == [  # type: ignore[arg-type]
        {"name": "echo", "version": "1", "state": "UNLOADING", "reason": ""}
    ]


def block(worker: int, began: int, batches: int = 1, took: int = 8) -> events.Batch:
    values = dict.fromkeys(events.FIELDS, 0) | {"worker": worker, "began": began, "took": took, "batches": batches}
    return tuple(values.values())


def test_very_many_batches_become_blocks_without_gaps() -> None:
    many = [block(worker, at) for at in range(0, 400, 10) for worker in (0, 1)]
    assert events.in_blocks(many, 80, 400) is many
    assert events.in_blocks(many, 8, 400) == [
        block(worker, at, 10, 98) for at in range(0, 400, 100) for worker in (0, 1)
    ]
