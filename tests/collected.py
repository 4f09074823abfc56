"""A tracer whose spans are kept in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app.observe.tracing.spans import Tracer


class Collected:
    """A tracer, and the spans that have ended."""

    def __init__(self, ratio: float = 1.0) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracer = Tracer(SimpleSpanProcessor(self._exporter), "0", ratio)

    def spans(self) -> list[ReadableSpan]:
        return list(self._exporter.get_finished_spans())

    def one(self) -> ReadableSpan:
        """The one span since the last call."""
        (span,) = self.spans()
        self._exporter.clear()
        return span


def told(span: Any) -> Mapping[str, Any]:
    """The attributes of a span or an event."""
    return span.attributes


def header_of(span: ReadableSpan) -> bytes:
    """The `traceparent` that names this span."""
    context = span.context
    return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)
