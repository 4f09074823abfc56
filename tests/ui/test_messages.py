"""What the page is told is a function of what is counted, and all of it is JSON."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from test_http.catalog import FakeServed, served, spec

from app.contract import Answer, IndexEntry, Klass, SampleRow
from app.observe.metrics import ModelStats
from app.observe.snapshot import Gauges, Plan, Snapshot
from app.ui import messages
from app.ui.history import Machine

MS = 1_000_000
IDLE = Machine(0.0, 0, 0)
ECHO = served("echo", (spec("x", "FP32", 4),), (spec("y", "FP32", 4),))


def gauges(model: str = "echo", version: str = "1", level: int = -1, **plan: Any) -> Gauges:
    stats = ModelStats(model, version)
    stats.whole[Klass.REALTIME].ran(0, "idle", "", 2, (1 * MS, 2 * MS, 3 * MS))
    stats.call_answered("ok", 12 * MS, Klass.REALTIME, Answer([], 5 * MS, (1 * MS, 2 * MS, 3 * MS), 1), 1)
    stats.call_answered("queue_full", 1 * MS, Klass.BEST_EFFORT)
    return Gauges(
        stats, 2, preferred=4, rate=7.5, slots_used=5, waiting={"realtime": 1, "best_effort": 2},
        scale=1.5, level=level, plan=Plan(batch_ns=(2 * MS, 3 * MS), origin="measured", **plan),
    )  # fmt: skip


def test_latency_has_a_bucket_more_than_there_are_bounds() -> None:
    told = messages.hello({"version": "0"}, 250)
    tick = messages.tick(0, None, Snapshot([gauges()], []), [], [], IDLE)
    assert len(tick["models"][0]["latency"]) == len(told["latency_s"]) + 1
    assert (told["version"], told["interval_ms"]) == ("0", 250)


def test_models_have_their_state_and_what_they_are_planned_with() -> None:
    index = [IndexEntry("broken", "1", "UNAVAILABLE", "no <b>inputs</b>"), IndexEntry("echo", "1", "READY")]
    tables = ((0, *range(1, 300)), (0, 0, *range(2, 300)))
    now = messages.models_state(index, Snapshot([gauges(loads=(0.1, 0.5), tables=tables, level=1)], []))
    broken, echo = messages.models(now, [ECHO])["models"]
    assert broken == {"name": "broken", "version": "1", "state": "UNAVAILABLE", "reason": "no <b>inputs</b>"}
    assert (echo["batch_ms"], echo["origin"], echo["loads"]) == ([2.0, 3.0], "measured", (0.1, 0.5))
    assert [len(table) for table in echo["tables"]] == [65, 65]  # twice the largest batch, and none waiting
    assert echo["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["rows", "4"]}]
    assert echo["example"]["inputs"][0]["data"] == [[1.0] * 4]
    assert (echo["sends"], echo["writes"], echo["cell"]) == ("values", False, False)


def test_a_model_that_is_going_has_no_plan_to_show() -> None:
    """It is counted until it has drained, and is no longer among those that serve."""
    index = [IndexEntry("echo", "1", "UNLOADING")]
    now = messages.models_state(index, Snapshot([gauges()], []))
    found: list[FakeServed] = []
    assert messages.models(now, found)["models"] == [  # type: ignore[arg-type]
        {"name": "echo", "version": "1", "state": "UNLOADING", "reason": ""}
    ]


def test_an_event_is_one_line_of_json() -> None:
    sent = messages.encoded(
        "models", {"reason": "two\nlines", "tick": messages.tick(0, "why", Snapshot([], []), [], [], IDLE)}
    )
    name, data, *end = sent.split(b"\n")
    assert name == b"event: models"
    assert orjson.loads(data.removeprefix(b"data: "))["reason"] == "two\nlines"
    assert end == [b"", b""]


@pytest.mark.parametrize(
    ("datatype", "row", "sends"),
    [("BYTES", b"a text", "text"), ("BYTES", b"\x89PNG\xff", "file"), ("BYTES", None, "text"), ("FP32", None, "file")],
)
def test_the_form_begins_with_what_users_send(datatype: str, row: bytes | None, sends: str) -> None:
    """A model that decodes files, by its input and its example."""
    given = spec("x", datatype, 1)
    example = None if row is None else SampleRow((np.array([row], object),))
    one = served("one", (given,), (given,), decode=lambda media, body: {})
    one.example = example
    index = [IndexEntry("one", "1", "READY")]
    now = messages.models_state(index, Snapshot([gauges("one")], []))
    assert messages.models(now, [one])["models"][0]["sends"] == sends


def block(worker: int, began: int, batches: int = 1, took: int = 8) -> messages.Batch:
    values = dict.fromkeys(messages.FIELDS, 0) | {"worker": worker, "began": began, "took": took, "batches": batches}
    return tuple(values.values())


def test_very_many_batches_become_blocks_without_gaps() -> None:
    many = [block(worker, at) for at in range(0, 400, 10) for worker in (0, 1)]
    assert messages.merge_batches(many, 80, 400) is many
    assert messages.merge_batches(many, 8, 400) == [
        block(worker, at, 10, 98) for at in range(0, 400, 100) for worker in (0, 1)
    ]
