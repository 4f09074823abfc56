"""Records as OpenTelemetry's spans, and the thread that sends them. All that imports opentelemetry.

Only `setup.py` imports it, when tracing is on. The SDK's BatchSpanProcessor is not used: it takes finished spans, which
would be made on the event loop. Measured, that is 9 us a call and 0.6 us to hand it over, against 0.2 us for a record
that becomes a span on the thread. Its shutdown waits for up to 30 s, longer than some orchestrators do.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState
from opentelemetry.util.types import AttributeValue

from .spans import BatchSpan, CallSpan, SpanId
from .tracer import Record

log = logging.getLogger("starling.tracing")

ROOM = 4096  # spans that wait for the thread; more are dropped. Some 4 MB
_TOGETHER = 512  # spans in one message to the collector, as the SDK has it
_DELAY_S = 1.0  # how long the first of them waits for others
_EXPORTERS_LOG = "opentelemetry.exporter"  # where the SDK says of every message that could not be sent
_JOIN_S = 0.5

Attributes = dict[str, AttributeValue]

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"})
_GONE = "client_gone"
_LONGEST_STATE = 512  # bytes of `tracestate`; W3C asks for no more


class SpanSender:
    """Sends spans from a thread of its own. `offer` never waits: what there is no room for is dropped, and counted.

    The log says once that a collector cannot be reached, and once that it can be again.
    """

    def __init__(self, exporter: SpanExporter, make: Callable[[Record, int], ReadableSpan], room: int = ROOM) -> None:
        self._exporter = exporter
        self._make = make
        self._room = room
        self._queue: deque[Record | threading.Event] = deque()
        self._some, self._enough = threading.Event(), threading.Event()
        self._closing = False
        self._failing = False
        self._reason = LastWord()
        self._thread = threading.Thread(target=self._run, name="spans", daemon=True)  # a collector may hang
        self.taken = self.dropped = 0  # on the loop's side
        self.sent = self.lost = 0  # on the thread's

    def start(self) -> None:
        self._reason.listen()
        self._thread.start()

    def offer(self, span: Record) -> None:
        """Take a span, from the event loop."""
        waiting = len(self._queue)
        if waiting >= self._room:
            self.dropped += 1
            return
        self.taken += 1
        self._queue.append(span)
        if waiting >= _TOGETHER and not self._enough.is_set():
            self._enough.set()
        if not self._some.is_set():
            self._some.set()

    def flush(self, limit_s: float) -> bool:
        """Wait until everything offered so far has been sent, or was lost; False if that takes longer than the limit.

        Blocks: not for the event loop.
        """
        marker = threading.Event()
        self._queue.append(marker)
        self._enough.set()
        self._some.set()
        return marker.wait(limit_s)

    def close(self, limit_s: float) -> None:
        """Send what is left, for so long; then end. Blocks."""
        self.flush(limit_s)
        self._closing = True
        self._some.set()
        self._exporter.shutdown()  # also ends the wait before another attempt
        self._thread.join(_JOIN_S)
        self._reason.unlisten()
        missing = self.taken - self.sent + self.dropped  # what is on its way may yet arrive, and counts as missing
        say = log.warning if missing else log.info
        say("%d spans sent, %d not: %d had no room", self.sent, missing, self.dropped)

    # on the thread

    def _run(self) -> None:
        while not self._closing:
            self._some.wait()
            if not self._closing:
                self._enough.wait(_DELAY_S)
            self._some.clear()  # first, so that what comes from here on wakes it again
            self._enough.clear()
            while self._queue and not self._closing:
                self._send()

    def _send(self) -> None:
        """One message, of what waits up to a marker."""
        spans: list[Record] = []
        marker = None
        while self._queue and marker is None and len(spans) < _TOGETHER:
            first = self._queue.popleft()
            if isinstance(first, threading.Event):
                marker = first
            else:
                spans.append(first)
        if spans:
            self._export(spans)
        if marker is not None:
            marker.set()

    def _export(self, spans: Sequence[Record]) -> None:
        # Anew each time, because the clock of the world may be set while the server runs.
        epoch = time.time_ns() - time.monotonic_ns()
        try:
            result = self._exporter.export([self._make(span, epoch) for span in spans])
        except Exception as exc:  # whatever it is: the next spans may be better
            result, self._reason.said = SpanExportResult.FAILURE, f"{type(exc).__name__}: {exc}"
        if result is SpanExportResult.SUCCESS:
            self.sent += len(spans)
            if self._failing:
                log.info("spans are sent again; %d were lost", self.lost)
            self._failing = False
        else:
            self.lost += len(spans)
            if not self._failing:
                log.warning("spans cannot be sent: %s (not said again until they can)", self._reason.said)
            self._failing = True


class LastWord(logging.Handler):
    """Keeps the last line that the SDK's exporters logged, in place of printing one for each message not sent."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said = "no reason given"

    def emit(self, record: logging.LogRecord) -> None:
        self.said = record.getMessage()

    def listen(self) -> None:
        logger = logging.getLogger(_EXPORTERS_LOG)
        logger.addHandler(self)
        logger.propagate = False

    def unlisten(self) -> None:
        logger = logging.getLogger(_EXPORTERS_LOG)
        logger.removeHandler(self)
        logger.propagate = True


def sender(endpoint: str | None, version: str, scheme: str) -> SpanSender:
    """A sender to the collector at a URL; None: where OpenTelemetry's own variables say. `scheme`: http or https."""
    return SpanSender(OTLPSpanExporter(endpoint=endpoint), Readable(resource(version), version, scheme))


def resource(version: str) -> Resource:
    """Who sends the spans: `starling`, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES say otherwise."""
    given = Resource.create()
    ours = {SERVICE_VERSION: version}
    if str(given.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = "starling"
    return given.merge(Resource(ours))


class Readable:
    """Makes spans of records. `epoch` is what to add to a record's times; `scheme`: what the server speaks."""

    def __init__(self, resource: Resource, version: str, scheme: str = "http") -> None:
        self._resource = resource
        self._scheme = scheme
        self._scope = InstrumentationScope("starling", version)

    def __call__(self, record: Record, epoch: int) -> ReadableSpan:
        return self._of_call(record, epoch) if isinstance(record, CallSpan) else self._of_batch(record, epoch)

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
    """What happened to a call: name, time and attributes of each, in order of time but for batches that ran at once."""
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
    elif failure.code != _GONE:  # nothing was sent to a client that has gone
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
    if call.left_out:
        found["starling.batches_left_out"] = call.left_out
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
    """Clients may send any word: the conventions have one name for all that are no method."""
    return call.method if call.method in _METHODS else "_OTHER"


def _state(header: bytes | None) -> TraceState | None:
    if header is None or len(header) > _LONGEST_STATE:
        return None
    return TraceState.from_header([header.decode("latin-1")])


def _context(ident: SpanId, state: TraceState | None = None, *, remote: bool = False) -> SpanContext:
    return SpanContext(*ident, is_remote=remote, trace_flags=_SAMPLED, trace_state=state)
