"""Records become spans on the processor's thread; a collector that hangs or is not there holds up nobody."""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence

import pytest
from collected import PATIENCE_S
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.contract import ModelInfo
from app.observe.tracing.export import SpanSender
from app.observe.tracing.spans import BatchSpan

INFO = ModelInfo("m", "1", "test", (), ())


def batch(number: int) -> BatchSpan:
    return BatchSpan(
        INFO, number, 0, "idle", "new", "realtime", 1, 1, None, 1, 10, 20, (1, 2, 3), ident=(1, number + 1)
    )


class Hanging(SpanExporter):
    """Exports nothing before it is open."""

    def __init__(self) -> None:
        self.open, self.thread = threading.Event(), ""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.thread = threading.current_thread().name
        assert self.open.wait(PATIENCE_S)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


def test_closing_ends_at_its_limit() -> None:
    """The collector takes the message, and does not answer."""
    exporter = Hanging()
    sender = SpanSender(exporter, "0")
    sender.offer(batch(1))
    sender.close(0.1)
    assert not exporter.open.is_set()
    assert exporter.thread not in ("", threading.current_thread().name)
    exporter.open.set()


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    """With the exporter that serves: the log says what is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        exporter = OTLPSpanExporter(endpoint=f"http://127.0.0.1:{taken.getsockname()[1]}/v1/traces", timeout=0.1)
        sender = SpanSender(exporter, "0")
        sender.offer(batch(1))
        sender.close(PATIENCE_S)
    assert [record for record in caplog.records if record.name.startswith("opentelemetry.exporter")]
