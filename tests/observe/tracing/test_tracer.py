"""Each call that is sampled gives one span; others give none, and cost a header."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from collected import collecting, made_of, told

from app.contract import Answer, ModelInfo
from app.errors import ClientGone, DeadlineExceeded, ModelFailed, QueueFull
from app.observe.tracing.spans import MOST_BATCHES, BatchSpan, CallSpan, parent_of
from app.observe.tracing.tracer import MOST_FORCED, Record, Tracer

PARENT = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0%d"
INFO = ModelInfo("m", "1", "test", (), ())


@dataclass
class OneLease:
    id: int = 7
    entered: int = 2000
    rows: list[int] = field(default_factory=lambda: [0, 0, 0])


def answer(batch: int = 3) -> Answer:
    return Answer([np.zeros((1, 2))], 2_000_000, (1_000_000, 3_000_000, 1_000_000), batch)


def begin(tracer: Tracer, **headers: bytes) -> Any:
    span = tracer.begin({name.encode(): value for name, value in headers.items()}, 1000)
    if isinstance(span, CallSpan):
        span.set_request("POST", "/predict/m", "/predict/{model}", "m", b"id-1")
    return span


def test_callers_force_only_so_many_records_a_second() -> None:
    headers = {b"traceparent": PARENT % 1}
    for ratio, expected in ((0.5, [MOST_FORCED, MOST_FORCED]), (1.0, [300, 300])):
        tracer = Tracer([].append, ratio)
        recorded = [
            sum(isinstance(tracer.begin(headers, second * 1_000_000_000 + n), CallSpan) for n in range(300))
            for second in (1, 2)
        ]
        assert recorded == expected


def test_a_parent_decides_whatever_the_ratio() -> None:
    for ratio in (0.0, 1.0):
        offered: list[Record] = []
        tracer = Tracer(offered.append, ratio)
        for sampled in (0, 1):
            span = begin(tracer, traceparent=PARENT % sampled)
            head = parent_of(span.succeeded(INFO, "", answer()))
            assert head is not None
            assert (head.trace_id, head.sampled) == (0x0AF7651916CD43DD8448EB211C80319C, bool(sampled))
            assert head.span_id != 0xB7AD6B7169203331
        assert len(offered) == 1


def test_a_call_that_went_well() -> None:
    with collecting() as collected:
        tracer = Tracer(collected.sender.offer)
        span = begin(tracer, traceparent=PARENT % 1, tracestate=b"vendor=1,other=2", **{"user-agent": b"curl"})
        tracer.submitted(span, OneLease())
        span.succeeded(INFO, "best_effort", answer())
        found = collected.one()
    assert found.name == "POST /predict/{model}"
    assert found.parent is not None
    assert found.parent.is_remote
    assert (found.parent.trace_id, found.parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert found.context.trace_state.to_header() == "vendor=1,other=2"
    assert dict(told(found)) == {
        "http.request.method": "POST", "url.path": "/predict/m", "url.scheme": "http", "http.route": "/predict/{model}",
        "http.response.status_code": 200, "user_agent.original": "curl", "starling.request_id": "id-1",
        "starling.model": "m", "starling.version": "1", "starling.class": "best_effort", "starling.outcome": "ok",
        "starling.batch.size": 3, "starling.queue_ms": 2.0, "starling.compute_ms": 5.0, "starling.rows": 3,
    }  # fmt: skip
    assert [event.name for event in found.events] == ["queued"]
    assert found.start_time is not None
    assert found.end_time is not None
    assert found.events[0].timestamp - found.start_time == 1000
    assert found.resource.attributes["service.name"] == "starling"
    assert found.status.status_code.name == "UNSET"


def test_failures_say_what_and_only_a_servers_own_are_errors() -> None:
    with collecting() as collected:
        tracer = Tracer(collected.sender.offer)
        begin(tracer).failed(INFO, "", QueueFull("full", retry_after_s=1), 429)
        begin(tracer).failed(INFO, "", ModelFailed("it failed", cause=ValueError("poisoned")), 500)
        begin(tracer).failed(INFO, "", DeadlineExceeded("late"), 504)
        begin(tracer).failed(None, "", ClientGone("gone"), 499)
        begin(tracer).failed(INFO, "", KeyError("a bug"), 500)
        full, broken, late, gone, bug = collected.of_calls()
    shown = [
        (told(span)["starling.outcome"], told(span).get("http.response.status_code"), span.status.status_code.name)
        for span in (full, broken, late, gone, bug)
    ]
    assert shown == [
        ("queue_full", 429, "UNSET"), ("model_failed", 500, "ERROR"), ("deadline_exceeded", 504, "ERROR"),
        ("client_gone", None, "UNSET"), ("internal", 500, "ERROR"),
    ]  # fmt: skip
    (event,) = broken.events
    assert (event.name, *told(event).values()) == ("exception", "ValueError", "poisoned")
    assert broken.status.description == "it failed"
    assert "starling.version" not in told(gone)


def test_a_call_of_many_batches_stays_small() -> None:
    offered: list[Record] = []
    tracer = Tracer(offered.append)
    span = begin(tracer)
    tracer.submitted(span, OneLease())
    for number in range(MOST_BATCHES + 5):
        batch = BatchSpan(INFO, number, 0, "idle", "on", "realtime", 1, 1, None, 1, 10, 20, (1, 2, 3))
        tracer.batch_ended(batch, tracer.recorded_calls([7, 8, 7]))
    span.succeeded(INFO, "", answer())
    made = made_of(span)
    assert len(made.links) == MOST_BATCHES
    assert told(made)["starling.batches_left_out"] == 5


def test_a_call_of_long_words_stays_small() -> None:
    """Spans wait for a collector, a few thousand of them, and who sends them may be anybody."""
    tracer, long = Tracer(list[Record]().append), "x" * 60_000
    headers = {b"traceparent": PARENT % 1, b"x-other": long.encode(), b"user-agent": long.encode()}
    span = tracer.begin({**headers, b"tracestate": f"a={long}".encode()}, 1000)
    assert isinstance(span, CallSpan)
    span.set_request("POST", f"/predict/{long}", "/predict/{model}", long, b"id-1")
    span.failed(None, "", QueueFull("full"), 429)
    kept = [span.method, span.path, span.model, *span.headers.values()]
    assert sum(map(len, kept)) < 5000
    made = made_of(span)
    assert made.context is not None
    assert not made.context.trace_state
    assert str(told(made)["url.path"]).startswith("/predict/xxx")
