"""The spans of inference calls, by OpenTelemetry's SDK. The only module that imports opentelemetry.

`setup.py` imports it if tracing is on. Spans begin and end on the event loop; a thread of the SDK sends them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanProcessor, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from app.contract import Answer, Klass, ModelInfo
from app.errors import ClientGone, StarlingError, text_of

Attributes = dict[str, AttributeValue]

FLUSH_S = 3.0  # most time to send the remaining spans when the server stops, within an orchestrator's grace
MOST_FORCED = 100  # calls per second that are recorded because the client asks for it: any client may
_LONGEST = 2048  # characters of an attribute: a client may send more, and spans wait for a collector
_LONGEST_HEADER = 512  # bytes of `tracestate`; W3C asks for no more
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_SAMPLED, _UNSAMPLED = TraceFlags(TraceFlags.SAMPLED), TraceFlags()
_UNSET = Status()


class Tracer:
    """Begins the spans of calls. `processor` gets those that have ended.

    `ratio`: the share of calls that are recorded if the client does not decide (parent-based sampling). Below 1, at
    most MOST_FORCED calls per second are recorded because their clients ask for it. `scheme`: http or https.
    """

    def __init__(self, processor: SpanProcessor, version: str, ratio: float = 1.0, scheme: str = "http") -> None:
        self.processor = processor
        # `starling`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES name another service
        ours = Resource({SERVICE_NAME: "starling", SERVICE_VERSION: version})
        self.resource = Resource.create(ours.merge(OTELResourceDetector().detect()).attributes)
        self.scope = InstrumentationScope("starling", version)
        forced = sampling.ALWAYS_ON if ratio == 1 else ForcedSampler()
        self._sampler = sampling.ParentBased(sampling.TraceIdRatioBased(ratio), remote_parent_sampled=forced)
        self._ids = RandomIdGenerator()
        # Not `propagate.extract`: its default reads `baggage` as well, with which any client could cost 0.6 ms.
        self._propagator = TraceContextTextMapPropagator()
        self._scheme = scheme

    def begin(
        self, headers: Mapping[bytes, bytes], *, method: str, path: str, route: str, model: str, request_id: bytes
    ) -> CallSpan:
        """The span of a new call. `route`: the path with placeholders for model and version.

        The parent in `traceparent` decides whether the call is recorded. A malformed header is ignored.
        """
        sent = {name: headers[name.encode()] for name in self._propagator.fields if name.encode() in headers}
        short = {name: value.decode("latin-1") for name, value in sent.items() if len(value) <= _LONGEST_HEADER}
        given = self._propagator.extract(short)
        parent = get_current_span(given).get_span_context()
        trace_id = parent.trace_id if parent.is_valid else self._ids.generate_trace_id()
        sampled = self._sampler.should_sample(given, trace_id, route)
        recorded = sampled.decision is sampling.Decision.RECORD_AND_SAMPLE
        context = SpanContext(
            trace_id, self._ids.generate_span_id(), False, _SAMPLED if recorded else _UNSAMPLED, sampled.trace_state
        )
        if not recorded:
            return CallSpan(self, "", context, None, {})
        method = method if method in _METHODS else "_OTHER"  # as the conventions say: clients may send any word
        attributes: Attributes = {
            "http.request.method": method,
            "url.path": path[:_LONGEST],
            "url.scheme": self._scheme,
            "http.route": route,
            "starling.request_id": request_id.decode("latin-1"),
            "starling.model": model[:_LONGEST],
        }
        if (agent := headers.get(b"user-agent")) is not None:
            attributes["user_agent.original"] = agent[:_LONGEST].decode("latin-1")
        return CallSpan(self, f"{method} {route}", context, parent if parent.is_valid else None, attributes)

    def close(self, limit_s: float = FLUSH_S) -> None:
        """Send the remaining spans for at most `limit_s`. Blocks. The SDK itself would wait up to 30 s."""
        closing = threading.Thread(target=self.processor.shutdown, name="spans-close", daemon=True)
        closing.start()
        closing.join(limit_s)


@dataclass(slots=True, eq=False)
class CallSpan:
    """The span of one call. `end` must be called once.

    Made when the call ends, as the SDK's ReadableSpan: its Span, which takes attributes at any time and from any
    thread, would cost the event loop 20 us more. `attributes`: those known so far; empty if the call is not recorded.
    `traceparent`: the value of the header in its answer.
    """

    tracer: Tracer
    name: str
    context: SpanContext
    parent: SpanContext | None
    attributes: Attributes
    started: int = field(default_factory=time.time_ns)

    @property
    def traceparent(self) -> bytes:
        context = self.context
        return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags)

    def end(
        self, info: ModelInfo | None, klass: Klass, rows: int, outcome: Answer | BaseException | None, status: int
    ) -> None:
        """The call has its answer or its error, with this status."""
        if not (found := self.attributes):
            return
        shown, events = _UNSET, []
        if not isinstance(outcome, ClientGone):  # to a client that has gone no answer is sent
            found["http.response.status_code"] = status
        if isinstance(outcome, BaseException):
            code, cause = (outcome.code, outcome.cause) if isinstance(outcome, StarlingError) else ("internal", outcome)
            found["starling.outcome"] = code
            if status >= 500:
                found["error.type"] = code
                shown = Status(StatusCode.ERROR, text_of(outcome)[:_LONGEST])
            if cause is not None:  # without its traceback, which is in the log: formatting it takes long
                kind, message = type(cause).__qualname__, text_of(cause)[:_LONGEST]
                events.append(Event("exception", {"exception.type": kind, "exception.message": message}))
        elif outcome is not None:
            found |= {
                "starling.outcome": "ok",
                "starling.batches": outcome.batches,
                "starling.batch.size": outcome.batch,
                "starling.batch.reason": str(outcome.reason),
                "starling.worker": outcome.worker,
                "starling.queue_ms": outcome.queue_ns / 1e6,
                "starling.compute_ms": sum(outcome.times) / 1e6,
            }
        if info is not None:
            found["starling.model"], found["starling.version"] = info.name, info.version
            found["starling.class"] = str(klass)
        if rows:
            found["starling.rows"] = rows
        tracer = self.tracer
        tracer.processor.on_end(
            ReadableSpan(
                self.name, self.context, self.parent, tracer.resource, found, events, kind=SpanKind.SERVER,
                status=shown, start_time=self.started, end_time=time.time_ns(), instrumentation_scope=tracer.scope,
            )
        )  # fmt: skip


class ForcedSampler(sampling.Sampler):
    """Records the first MOST_FORCED calls of each second. `clock`: monotonic nanoseconds."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._second = self._forced = 0  # this second, and its calls so far

    def should_sample(self, *args: Any, **kwargs: Any) -> sampling.SamplingResult:
        second = self._clock() // 1_000_000_000
        if second != self._second:
            self._second, self._forced = second, 0
        self._forced += 1
        sampler = sampling.ALWAYS_ON if self._forced <= MOST_FORCED else sampling.ALWAYS_OFF
        return sampler.should_sample(*args, **kwargs)

    def get_description(self) -> str:
        return f"ForcedSampler{{{MOST_FORCED}}}"


def tracer_to(endpoint: str | None, version: str, ratio: float, scheme: str) -> Tracer:
    """A tracer to the collector at this URL; None: the URL is in OpenTelemetry's own variables."""
    return Tracer(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)), version, ratio, scheme)
