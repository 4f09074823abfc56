"""A collector gets a span for each request, on both ways alike, which says in what batch it ran."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from background import eventually, running

from .collector import Collector, told
from .conftest import Keeper
from .server import DEMO, PATIENCE_S, Server

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
ECHO = ("--model", f"echo={DEMO / 'echo'}")


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running(Collector()) as found:
        yield found


@pytest.fixture
def traced(keeper: Keeper, collector: Collector, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")  # ms, in place of 5 s
    return keeper.kept(("gate", "marked"), *ECHO, "--otlp-endpoint", collector.url, "--drain-grace-s", "0")


def test_requests_that_share_a_batch(traced: Server, collector: Collector, threads: ThreadPoolExecutor) -> None:
    """One request holds the worker; two, one of them on the ASGI way, share the next batch."""
    assert traced.gate is not None
    held = threads.submit(traced.infer, "gate", [[2]])
    traced.gate.wait()
    parent = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "vendor=1", "X-Request-ID": "mine"}
    direct = threads.submit(traced.infer, "gate", [[3]], parent)
    asgi = threads.submit(traced.infer, "gate", [[4]], {"Connection": "close", "X-Class": "realtime"})
    eventually(lambda: traced.waiting("gate") == 2)
    traced.gate.open()
    replies = [one.result(PATIENCE_S) for one in (held, direct, asgi)]
    assert [reply.status for reply in replies] == [200, 200, 200]

    _, one, other = map(collector.of, replies)
    assert (one.trace_id.hex(), one.parent_span_id.hex(), one.trace_state) == (TRACE, SPAN, "vendor=1")
    assert one.name == other.name == "POST /v2/models/{model}/infer"
    assert replies[1].headers["x-request-id"] == told(one)["starling.request_id"] == "mine"
    assert other.parent_span_id == b""
    for span in (one, other):
        shown = told(span)
        assert (shown["starling.model"], shown["http.response.status_code"], shown["starling.class"]) == (
            "gate", 200, "realtime",
        )  # fmt: skip
        assert (shown["starling.batches"], shown["starling.batch.size"], shown["starling.worker"]) == (1, 2, 0)
        assert shown["starling.queue_ms"] > 0
        assert span.kind == span.SPAN_KIND_SERVER
    assert collector.services == {"starling"}


def test_what_is_sent_and_that_it_is_before_the_server_ends(traced: Server, collector: Collector) -> None:
    row = [[1, 2, 3, 4]]
    untraced = traced.infer("echo", row, {"traceparent": f"00-{TRACE}-{SPAN}-00"})
    assert untraced.headers["traceparent"].split("-")[1::2] == [TRACE, "00"]
    replies = [traced.infer("marked", [[-1, 0]]), traced.post("/predict/nothing", [1]), traced.infer("echo", row)]
    assert traced.stop() == 0
    assert [reply.status for reply in replies] == [500, 404, 200]
    for reply in replies:
        assert told(collector.of(reply))["http.response.status_code"] == reply.status
    assert not collector.has(untraced)
