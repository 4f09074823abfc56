"""Each call that is sampled gives one span; others give none. A collector that hangs or is gone holds up nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from collected import Collected, header_of, told
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import Decision

from app.contract import Answer, Klass, ModelInfo
from app.errors import ClientGone, DeadlineExceeded, ModelFailed, QueueFull
from app.observe.tracing.spans import MOST_FORCED, CallSpan, ForcedSampler, Tracer

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"  # the example of the specification
PARENT = f"00-{TRACE}-{SPAN}-0%d"
INFO = ModelInfo("m", "1", "test", (), ())
PATIENCE_S = 30.0


def answer() -> Answer:
    outputs = [np.zeros((1, 2))]
    return Answer(outputs, 2_000_000, (1_000_000, 3_000_000, 1_000_000), 3, worker=1, reason="full", batches=2)


def begin(tracer: Tracer, path: str = "/predict/m", **headers: str) -> CallSpan:
    sent = {name.encode(): value.encode() for name, value in headers.items()}
    return tracer.begin(sent, method="POST", path=path, route="/predict/{model}", model="m", request_id=b"id-1")


def test_a_parent_decides_whatever_the_ratio() -> None:
    for ratio in (0.0, 1.0):
        collected = Collected(ratio)
        for sampled in (0, 1):
            call = begin(collected.tracer, traceparent=PARENT % sampled)
            call.end(INFO, Klass.REALTIME, 1, answer(), 200)
            head = call.traceparent
            trace, span, flags = head.decode().split("-")[1:]
            assert (trace, int(flags, 16) & 1) == (TRACE, sampled)
            assert span != SPAN
        assert header_of(collected.one()) == head


def test_without_a_parent_the_ratio_decides() -> None:
    for ratio, expected in ((0.0, 0), (1.0, 20)):
        collected = Collected(ratio)
        for _ in range(20):
            call = begin(collected.tracer)
            call.end(INFO, Klass.REALTIME, 1, QueueFull("full"), 429)
            head = call.traceparent
            assert head[:3] == b"00-"
            assert int(head[-2:], 16) & 1 == bool(ratio)
        assert len(collected.spans()) == expected


@pytest.mark.parametrize("header", ["", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{SPAN}", "x"])
def test_a_malformed_parent_is_ignored(header: str) -> None:
    assert TRACE.encode() not in begin(Collected().tracer, traceparent=header).traceparent


def test_callers_force_only_so_many_records_a_second() -> None:
    now = 0
    sampler = ForcedSampler(lambda: now)
    for second in (1, 2):
        now = second * 1_000_000_000 + 5
        decisions = [sampler.should_sample(None, 1, "call").decision for _ in range(300)]
        assert decisions.count(Decision.RECORD_AND_SAMPLE) == MOST_FORCED
    below, all_of_them = Collected(0.5), Collected(1.0)
    for collected in (below, all_of_them):
        for _ in range(3 * MOST_FORCED):
            begin(collected.tracer, traceparent=PARENT % 1).end(INFO, "", 1, answer(), 200)
    assert MOST_FORCED <= len(below.spans()) <= 2 * MOST_FORCED  # a second may end meanwhile
    assert len(all_of_them.spans()) == 3 * MOST_FORCED


def test_a_call_that_went_well() -> None:
    collected = Collected()
    headers = {"traceparent": PARENT % 1, "tracestate": "vendor=1,other=2", "user-agent": "curl"}
    begin(collected.tracer, **headers).end(INFO, Klass.BEST_EFFORT, 3, answer(), 200)
    found: Any = collected.one()
    assert (found.name, found.kind.name) == ("POST /predict/{model}", "SERVER")
    assert (found.parent.trace_id, found.parent.span_id) == (int(TRACE, 16), int(SPAN, 16))
    assert found.context.trace_state.to_header() == "vendor=1,other=2"
    assert dict(told(found)) == {
        "http.request.method": "POST", "url.path": "/predict/m", "url.scheme": "http", "http.route": "/predict/{model}",
        "http.response.status_code": 200, "user_agent.original": "curl", "starling.request_id": "id-1",
        "starling.model": "m", "starling.version": "1", "starling.class": "best_effort", "starling.outcome": "ok",
        "starling.batches": 2, "starling.batch.size": 3, "starling.batch.reason": "full", "starling.worker": 1,
        "starling.queue_ms": 2.0, "starling.compute_ms": 5.0, "starling.rows": 3,
    }  # fmt: skip
    assert found.start_time <= found.end_time
    assert found.resource.attributes["service.name"] == "starling"
    assert found.status.status_code.name == "UNSET"


def test_failures_say_what_and_only_a_servers_own_are_errors() -> None:
    collected = Collected()
    failures: list[tuple[Exception, int]] = [
        (QueueFull("full", retry_after_s=1), 429), (ModelFailed("it failed", cause=ValueError("poisoned")), 500),
        (DeadlineExceeded("late"), 504), (KeyError("a bug"), 500), (ClientGone("gone"), 499),
    ]  # fmt: skip
    for exc, status in failures:
        begin(collected.tracer).end(None if status == 499 else INFO, "", 0, exc, status)
    spans = collected.spans()
    shown = [
        (told(span)["starling.outcome"], told(span).get("http.response.status_code"), span.status.status_code.name)
        for span in spans
    ]
    assert shown == [
        ("queue_full", 429, "UNSET"), ("model_failed", 500, "ERROR"), ("deadline_exceeded", 504, "ERROR"),
        ("internal", 500, "ERROR"), ("client_gone", None, "UNSET"),
    ]  # fmt: skip
    _, broken, _, bug, gone = spans
    assert [*told(broken.events[0]).values()] == ["ValueError", "poisoned"]
    assert [*told(bug.events[0]).values()] == ["KeyError", "no key 'a bug'"]
    assert (broken.status.description, told(broken)["error.type"]) == ("it failed", "model_failed")
    assert "starling.version" not in told(gone)


def test_a_call_of_long_words_stays_small() -> None:
    """Spans wait for a collector, a few thousand of them, and who sends them may be anybody."""
    collected, long = Collected(), "x" * 60_000
    headers = {"traceparent": PARENT % 1, "x-other": long, "user-agent": long, "tracestate": f"a={long}"}
    span = begin(collected.tracer, f"/predict/{long}", **headers)
    span.end(None, "", 0, ModelFailed(long, cause=ValueError(long)), 500)
    found = collected.one()
    assert str(told(found)["url.path"]).startswith("/predict/xxx")
    assert len(found.to_json()) < 20_000


class Hanging(SpanExporter):
    """Exports nothing before it is open."""

    def __init__(self) -> None:
        self.open, self.thread = threading.Event(), ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.thread = threading.current_thread().name
        assert self.open.wait(PATIENCE_S)
        return SpanExportResult.SUCCESS


def ended_call(exporter: SpanExporter) -> Tracer:
    tracer = Tracer(BatchSpanProcessor(exporter), "0")
    begin(tracer).end(INFO, "", 1, answer(), 200)
    return tracer


def test_closing_ends_at_its_limit() -> None:
    """The collector takes the message, and does not answer."""
    exporter = Hanging()
    ended_call(exporter).close(0.1)
    assert not exporter.open.is_set()
    assert exporter.thread not in ("", threading.current_thread().name)
    exporter.open.set()


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """With the exporter that serves: the log says what is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces"
        ended_call(OTLPSpanExporter(endpoint=url, timeout=0.1)).close(PATIENCE_S)
    assert [record for record in caplog.records if record.name.startswith("opentelemetry.")]
