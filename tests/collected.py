"""Spans as a collector would have them, kept in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.observe.tracing.export import SpanSender
from app.observe.tracing.tracer import Record

PATIENCE_S = 30.0


class Collected:
    """What a sender has sent. `of_calls` and `of_batches` wait for what was offered until then."""

    def __init__(self, sender: SpanSender, exporter: InMemorySpanExporter) -> None:
        self.sender = sender
        self._exporter = exporter

    def spans(self) -> list[ReadableSpan]:
        self.sender.flush()
        return list(self._exporter.get_finished_spans())

    def of_calls(self) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.kind.name == "SERVER"]

    def of_batches(self) -> list[ReadableSpan]:
        return [span for span in self.spans() if span.kind.name == "INTERNAL"]

    def one(self) -> ReadableSpan:
        (span,) = self.of_calls()
        return span


@contextmanager
def collecting() -> Iterator[Collected]:
    exporter = InMemorySpanExporter()
    sender = SpanSender(exporter, "0")
    try:
        yield Collected(sender, exporter)
    finally:
        sender.close(PATIENCE_S)


def made_of(record: Record) -> ReadableSpan:
    """The span of one record."""
    with collecting() as collected:
        collected.sender.offer(record)
        (span,) = collected.spans()
    return span


def told(span: Any) -> Mapping[str, Any]:
    """The attributes of a span or an event."""
    assert span.attributes is not None
    return span.attributes  # type: ignore[no-any-return]
