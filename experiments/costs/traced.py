"""Tracing as a server has it, whose spans are made and encoded for a collector, and then thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.observe.tracing.export import SpanSender
from app.observe.tracing.tracer import Record, Tracer


class Encoder(SpanExporter):
    """All of an exporter but the network. `encoded`: how many spans it has been given."""

    encoded = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        self.encoded += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


class Traced:
    """A tracer that records the part `ratio` of the calls, and its thread, which ends with the process."""

    def __init__(self, ratio: float) -> None:
        self._encoder = Encoder()
        self._sender = SpanSender(self._encoder, "0")
        self._offered = 0
        self.tracer = Tracer(self._offer, ratio)

    def _offer(self, record: Record) -> None:
        self._offered += 1
        self._sender.offer(record)

    def settle(self) -> None:
        """Wait until nothing is left to encode. Raises RuntimeError where a span was dropped."""
        self._sender.flush()
        if self._encoder.encoded != self._offered:
            raise RuntimeError(f"spans were dropped: {self._offered - self._encoder.encoded}")
