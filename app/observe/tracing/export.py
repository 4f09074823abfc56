"""Spans as OpenTelemetry has them, and the thread that sends them: with `readable.py` all that imports opentelemetry.

Nobody imports this one but `setup.py`, when tracing is on. The SDK's own batch processor is not used: it takes spans
that have been made, so they would be made on the event loop, and it has no limit on how long the last flush may take.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from .readable import Readable
from .tracer import Record

log = logging.getLogger("starling.tracing")

ROOM = 4096  # spans that wait for the thread; more are dropped. Some 4 MB
_TOGETHER = 512  # spans in one message to the collector, as the SDK has it
_DELAY_S = 1.0  # how long the first of them waits for others
_EXPORTERS_LOG = "opentelemetry.exporter"  # where the SDK says of every message that could not be sent
_JOIN_S = 0.5


class SpanSender:
    """Sends spans from a thread of its own. `offer` never waits: what there is no room for is dropped, and counted.

    A collector that cannot be reached is said once, until it can be again.
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
        told = log.warning if missing else log.info
        told("%d spans sent, %d not: %d had no room", self.sent, missing, self.dropped)

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
        except Exception as exc:  # whatever it is, the thread goes on: the next spans may be better
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
    told = Resource.create()
    ours = {SERVICE_VERSION: version}
    if str(told.attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        ours[SERVICE_NAME] = "starling"
    return told.merge(Resource(ours))
