"""Makes OpenTelemetry spans of records, and sends them. The only module that imports opentelemetry.

`setup.py` imports it if tracing is on. Making a span takes 9 us, so records are queued as they are and become spans on
the thread of the SDK's processor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import AttributeValue

from .spans import BatchSpan, CallSpan, SpanId
from .tracer import Record

Attributes = dict[str, AttributeValue]

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_GONE = "client_gone"
FLUSH_S = 3.0  # most time to send the remaining spans when the server stops, within an orchestrator's grace
_LONGEST_STATE = 512  # bytes of `tracestate`; W3C asks for no more


class _Ended:
    """Wraps a record for the processor, which takes it for a span: it only reads whether it is sampled."""

    __slots__ = ("record",)
    context = SpanContext(1, 1, is_remote=False, trace_flags=_SAMPLED)

    def __init__(self, record: Record) -> None:
        self.record = record


class SpanSender:
    """OpenTelemetry's BatchSpanProcessor, for records. Configured by OpenTelemetry's variables OTEL_BSP_*."""

    def __init__(self, exporter: SpanExporter, version: str, scheme: str = "http") -> None:
        """`version`: of the server. `scheme`: http or https."""
        self._processor = BatchSpanProcessor(_SpansOfRecords(exporter, version, scheme))

    def offer(self, record: Record) -> None:
        """Queue a record. Called on the event loop; never waits: if the queue is full, the record is dropped."""
        self._processor.on_end(_Ended(record))  # type: ignore[arg-type]

    def flush(self) -> None:
        """Send everything offered so far. Blocks: call it on a thread."""
        self._processor.force_flush()

    def close(self, limit_s: float = FLUSH_S) -> None:
        """Send the remaining spans for at most `limit_s`. Blocks. The processor itself would wait up to 30 s."""
        closing = threading.Thread(target=self._processor.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(limit_s)


def sender(endpoint: str | None, version: str, scheme: str) -> SpanSender:
    """A sender to the collector at this URL; None: the URL is in OpenTelemetry's own variables."""
    return SpanSender(OTLPSpanExporter(endpoint=endpoint), version, scheme)


def resource(version: str) -> Resource:
    """The service in the spans: `starling`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name another."""
    given = Resource.create()
    ours = {SERVICE_VERSION: version}
    if str(given.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = "starling"
    return given.merge(Resource(ours))


class _SpansOfRecords(SpanExporter):
    """Makes spans of records, on the processor's thread, and passes them to an exporter."""

    def __init__(self, exporter: SpanExporter, version: str, scheme: str) -> None:
        self._exporter = exporter
        self._resource = resource(version)
        self._scheme = scheme
        self._scope = InstrumentationScope("starling", version)

    def export(self, spans: Sequence[Any]) -> SpanExportResult:
        # Added to a record's monotonic times. Computed each time, because the system clock may be set meanwhile.
        epoch = time.time_ns() - time.monotonic_ns()
        records = [ended.record for ended in spans]
        return self._exporter.export(
            [self._of_call(one, epoch) if isinstance(one, CallSpan) else self._of_batch(one, epoch) for one in records]
        )

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def _of_call(self, call: CallSpan, epoch: int) -> ReadableSpan:
        state = _state(call.headers.get(b"tracestate")) if call.parent else None
        failure = call.failure
        broken = failure is not None and failure.status >= 500
        return ReadableSpan(
            f"{_method(call)} {call.route}",
            context=_context(call.ident, state),
            parent=_context((call.ident[0], call.parent), state, remote=True) if call.parent else None,
            resource=self._resource,
            attributes={"url.scheme": self._scheme, **_call_attributes(call)},
            events=[Event(name, attributes, epoch + at) for name, at, attributes in call_events(call)],
            links=[Link(_context(batch.ident)) for batch in call.batches],
            kind=SpanKind.SERVER,
            status=Status(StatusCode.ERROR, failure.message or None) if failure and broken else Status(),
            start_time=epoch + call.arrived,
            end_time=epoch + call.ended,
            instrumentation_scope=self._scope,
        )

    def _of_batch(self, batch: BatchSpan, epoch: int) -> ReadableSpan:
        return ReadableSpan(
            f"batch {batch.info.name}",
            context=_context(batch.ident),
            resource=self._resource,
            attributes=_batch_attributes(batch),
            links=[Link(_context(call)) for call in batch.calls],
            kind=SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, batch.error) if batch.error else Status(),
            start_time=epoch + batch.started,
            end_time=epoch + batch.ended,
            instrumentation_scope=self._scope,
        )


def call_events(call: CallSpan) -> Iterator[tuple[str, int, Attributes]]:
    """The events of a call: name, time and attributes. In order of time, except batches that ran at once."""
    if call.entered:
        yield "queued", call.entered, {}
    for batch in call.batches:
        found: Attributes = {
            "starling.batch.size": batch.size,
            "starling.batch.rows": batch.rows,
            "starling.batch.reason": batch.reason,
            "starling.worker": batch.worker,
        }
        if batch.error:
            found["error.type"] = batch.error.partition(":")[0]
        yield "batch", batch.started, found
        if batch.stage is not None:
            ends = accumulate(batch.stage_ns, initial=batch.started)
            for number, (at, spent) in enumerate(zip(ends, batch.stage_ns, strict=False), batch.stage):
                yield "stage", at, {
                    "starling.stage": number,
                    "starling.stage.operation": batch.operation if number == batch.stage else "on",
                    "starling.batch.rows": batch.rows,
                    "starling.stage.duration_ms": spent / 1e6,
                }  # fmt: skip
    if call.failure is not None and call.failure.cause is not None:
        kind, message = call.failure.cause
        yield "exception", call.ended, {"exception.type": kind, "exception.message": message}


def _call_attributes(call: CallSpan) -> Attributes:
    found: Attributes = {
        "http.request.method": _method(call),
        "url.path": call.path,
        "http.route": call.route,
        "starling.request_id": call.request_id.decode("latin-1"),
        "starling.model": call.model,
    }
    if (agent := call.headers.get(b"user-agent")) is not None:
        found["user_agent.original"] = agent.decode("latin-1")
    if call.info is not None:
        found["starling.version"] = call.info.version
        found["starling.class"] = call.klass or call.info.batching.default_class
    failure = call.failure
    found["starling.outcome"] = "ok" if failure is None else failure.code
    if failure is None:
        found["http.response.status_code"] = 200
    elif failure.code != _GONE:  # no answer was sent to a client that disconnected
        found["http.response.status_code"] = failure.status
    if failure is not None and failure.status >= 500:
        found["error.type"] = failure.code
    if call.answer is not None:
        found["starling.batch.size"], queue_ns, compute_ns = call.answer
        found["starling.queue_ms"], found["starling.compute_ms"] = queue_ns / 1e6, compute_ns / 1e6
    if call.rows:
        found["starling.rows"] = call.rows
    if call.batches:
        found["starling.worker"] = call.batches[-1].worker
    if call.batches_left_out:
        found["starling.batches_left_out"] = call.batches_left_out
    return found


def _batch_attributes(batch: BatchSpan) -> Attributes:
    found: Attributes = {
        "starling.model": batch.info.name,
        "starling.version": batch.info.version,
        "starling.class": batch.klass,
        "starling.worker": batch.worker,
        "starling.batch.number": batch.number,
        "starling.batch.rows": batch.rows,
        "starling.batch.size": batch.size,
        "starling.batch.reason": batch.reason,
        "starling.batch.calls": batch.recorded,
    }
    if batch.stage is not None:
        found["starling.stage"] = batch.stage
        found["starling.stage.operation"] = batch.operation
    if batch.steps != 1:
        found["starling.batch.steps"] = batch.steps
    if batch.error:
        found["error.type"] = batch.error.partition(":")[0]
    names = ("starling.input_ms", "starling.infer_ms", "starling.output_ms")
    found.update(zip(names, (ns / 1e6 for ns in batch.parts), strict=False))
    return found


def _method(call: CallSpan) -> str:
    """The method, or the conventions' name for all unknown ones: clients may send any word."""
    return call.method if call.method in _METHODS else "_OTHER"


def _state(header: bytes | None) -> TraceState | None:
    if header is None or len(header) > _LONGEST_STATE:
        return None
    return TraceState.from_header([header.decode("latin-1")])


def _context(ident: SpanId, state: TraceState | None = None, *, remote: bool = False) -> SpanContext:
    return SpanContext(*ident, is_remote=remote, trace_flags=_SAMPLED, trace_state=state)
