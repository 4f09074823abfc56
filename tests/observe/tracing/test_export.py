"""The sender never waits on the loop's side, keeps within its bounds, and says once that nobody listens."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
from collected import PATIENCE_S, collecting, readable
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.contract import ModelInfo
from app.observe.tracing.export import SpanSender, resource
from app.observe.tracing.spans import BatchSpan

INFO = ModelInfo("m", "1", "test", (), ())


def batch(number: int) -> BatchSpan:
    return BatchSpan(
        INFO, number, 0, "idle", "new", "realtime", 1, 1, None, 1, 10, 20, (1, 2, 3), ident=(1, number + 1)
    )


class Scripted(SpanExporter):
    """Gives the results that it was told; then success. Each export waits for `open`."""

    def __init__(self, *results: SpanExportResult | Exception) -> None:
        self._results = list(results)
        self.open, self.entered = threading.Event(), threading.Event()
        self.open.set()
        self.sizes: list[int] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        assert self.open.wait(PATIENCE_S)
        self.sizes.append(len(spans))
        result = self._results.pop(0) if self._results else SpanExportResult.SUCCESS
        if isinstance(result, Exception):
            raise result
        return result

    def shutdown(self) -> None:
        self.open.set()


@contextmanager
def sending(exporter: SpanExporter, room: int = 4096) -> Iterator[SpanSender]:
    sender = SpanSender(exporter, readable(), room)
    sender.start()
    try:
        yield sender
    finally:
        sender.close(PATIENCE_S)


def test_what_is_offered_arrives_once_and_in_order() -> None:
    with collecting() as collected:
        for number in range(1500):
            collected.sender.offer(batch(number))
        found = [span.context.span_id for span in collected.of_batches()]
    assert found == list(range(1, 1501))
    assert collected.sender.sent == 1500


def test_a_full_queue_drops_and_counts() -> None:
    exporter = Scripted()
    exporter.open.clear()
    with sending(exporter, room=3) as sender:
        sender.offer(batch(0))
        assert sender.flush(0.0) is False  # which also wakes the thread at once
        assert exporter.entered.wait(PATIENCE_S)
        for number in range(1, 6):
            sender.offer(batch(number))
        exporter.open.set()
        assert sender.flush(PATIENCE_S)
    assert (sender.sent, sender.dropped) == (4, 2)


def test_an_outage_is_said_once_and_its_end_too(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "starling.tracing")
    failure = SpanExportResult.FAILURE
    with sending(Scripted(failure, ValueError("odd"), failure)) as sender:
        for number in range(5):
            sender.offer(batch(number))
            assert sender.flush(PATIENCE_S)
    assert [record.message for record in caplog.records] == [
        "spans cannot be sent: no reason given (not said again until they can)",
        "spans are sent again; 3 were lost",
        "2 spans sent, 3 not: 0 had no room",
    ]


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """With the exporter that serves: closing ends its wait before another attempt, and one line says what is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces")
        sender = SpanSender(exporter, readable())
        sender.start()
        sender.offer(batch(1))
        sender.close(0.2)
    lines = [record.message for record in caplog.records]
    assert [line for line in lines if "spans cannot be sent: " in line and "no reason" not in line]
    assert len(lines) == 2, lines
    assert lines[-1].startswith("0 spans sent, 1 not")
    assert not sender._thread.is_alive()


def test_who_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"):
        monkeypatch.delenv(name, raising=False)
    assert dict(resource("1.2").attributes).items() >= {"service.name": "starling", "service.version": "1.2"}.items()
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=mine,deployment.environment.name=test")
    told = resource("1.2").attributes
    assert (told["service.name"], told["deployment.environment.name"]) == ("mine", "test")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "theirs")
    assert resource("1.2").attributes["service.name"] == "theirs"
