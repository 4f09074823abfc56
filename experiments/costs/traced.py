"""Tracing as a server has it, whose spans are made and encoded for a collector, and then thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from app.observe.tracing.spans import Tracer


class Encoder(SpanExporter):
    """All of an exporter but the network."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS


class Traced:
    """A tracer that records the part `ratio` of the calls, and its thread, which ends with the process."""

    def __init__(self, ratio: float) -> None:
        self._processor = BatchSpanProcessor(Encoder(), max_queue_size=1 << 20)  # so that none is dropped
        self.tracer = Tracer(self._processor, "0", ratio)

    def settle(self) -> None:
        """Wait until nothing is left to encode."""
        self._processor.force_flush()
