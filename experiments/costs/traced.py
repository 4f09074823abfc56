"""Tracing as a server has it, whose spans are made and encoded for a collector, and then thrown away."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from app.observe.tracing.export import Readable, SpanSender, resource
from app.observe.tracing.tracer import Tracer

_FLUSH_S = 60.0


class Encoder(SpanExporter):
    """All of an exporter but the network."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        encode_spans(spans).SerializeToString()
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None: ...


class Traced:
    """A tracer that records the part `ratio` of the calls, and its thread, which ends with the process."""

    def __init__(self, ratio: float) -> None:
        self._sender = SpanSender(Encoder(), Readable(resource("0"), "0"))
        self._sender.start()
        self.tracer = Tracer(self._sender.offer, ratio)

    def settle(self) -> None:
        """Wait until nothing is left to encode. Raises RuntimeError where a span was dropped."""
        if not self._sender.flush(_FLUSH_S) or self._sender.dropped:
            raise RuntimeError(f"spans were dropped, or not encoded in time: {self._sender.dropped}")
