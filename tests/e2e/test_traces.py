"""A collector gets a span for each request, on both ways alike, which says in what batch it ran."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from typing import Any

from background import QuietHandler, eventually, running
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from .server import PATIENCE_S, Server

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(QuietHandler):
    """Takes OTLP over HTTP."""

    sent: list[Any] = []  # noqa: RUF012  # of each message, what its resource sends

    def post(self) -> None:
        assert self.path == "/v1/traces"
        body = self.rfile.read(int(self.headers["content-length"]))
        self.sent.extend(ExportTraceServiceRequest.FromString(body).resource_spans)
        self.answer(200)


def told(of: Any) -> dict[str, Any]:
    """Attributes."""
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in of.attributes}


def test_spans_are_sent_before_the_server_ends(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    """One request holds the worker; two, one of them on the ASGI way, share the next batch. One is not sampled."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Collector)) as collector:
        url = f"http://127.0.0.1:{collector.server_address[1]}"
        server = start("gate", flags=("--otlp-endpoint", url))
        assert server.gate is not None
        held = threads.submit(server.infer, "gate", [[2]])
        server.gate.wait()
        parent = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "X-Request-ID": "mine"}
        direct = threads.submit(server.infer, "gate", [[3]], parent)
        asgi = threads.submit(server.infer, "gate", [[4]], {"Content-Encoding": "identity"})
        eventually(lambda: server.waiting("gate") == 2)
        server.gate.open()
        replies = [one.result(PATIENCE_S) for one in (held, direct, asgi)]
        untraced = server.infer("gate", [[5]], {"traceparent": f"00-{TRACE}-{SPAN}-00"})
        replies.append(server.post("/predict/nothing", [1]))
        assert server.stop() == 0
    assert {told(one.resource)["service.name"] for one in Collector.sent} == {"starling"}
    by_id = {
        span.span_id.hex(): span
        for resource in Collector.sent for scope in resource.scope_spans for span in scope.spans
    }  # fmt: skip
    assert untraced.headers["traceparent"].split("-")[1::2] == [TRACE, "00"]
    assert untraced.headers["traceparent"].split("-")[2] not in by_id
    _, one, other, _ = spans = [by_id[reply.headers["traceparent"].split("-")[2]] for reply in replies]
    assert [told(span)["http.response.status_code"] for span in spans] == [200, 200, 200, 404]
    assert (one.trace_id.hex(), one.parent_span_id.hex(), one.trace_state) == (TRACE, SPAN, "vendor=1")
    assert other.parent_span_id == b""
    assert replies[1].headers["x-request-id"] == told(one)["starling.request_id"] == "mine"
    for span in (one, other):
        shown = told(span)
        assert (shown["starling.model"], shown["starling.class"]) == ("gate", "realtime")
        assert (shown["starling.batches"], shown["starling.batch.size"], shown["starling.worker"]) == (1, 2, 0)
        assert shown["starling.queue_ms"] > 0
