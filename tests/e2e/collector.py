"""A collector that takes OTLP over HTTP and keeps the spans that it is sent."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer
from typing import Any

from background import QuietHandler
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .server import PATIENCE_S, Reply


class Collector(ThreadingHTTPServer):
    """On a free port of the loopback interface."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.services: set[str] = set()
        self._spans: list[Any] = []
        self._came = threading.Condition()

    def take(self, body: bytes) -> None:
        with self._came:
            for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.services |= {
                    one.value.string_value for one in of_resource.resource.attributes if one.key == "service.name"
                }
                for of_scope in of_resource.scope_spans:
                    self._spans += of_scope.spans
            self._came.notify_all()

    def of(self, reply: Reply) -> Any:
        """Wait for the span that an answer names."""
        span_id = reply.headers["traceparent"].split("-")[2]
        with self._came:
            self._came.wait_for(lambda: self._named(span_id), PATIENCE_S)
            (span,) = self._named(span_id)
        return span

    def has(self, reply: Reply) -> bool:
        """Whether there is a span that an answer names, by now."""
        with self._came:
            return bool(self._named(reply.headers["traceparent"].split("-")[2]))

    def _named(self, span_id: str) -> list[Any]:
        return [span for span in self._spans if span.span_id.hex() == span_id]


class _Handler(QuietHandler):
    server: Collector

    def post(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        assert self.path == "/v1/traces"
        self.server.take(body)
        self.answer(200)


def told(of: Any) -> dict[str, Any]:
    """The attributes of a span or an event."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}
