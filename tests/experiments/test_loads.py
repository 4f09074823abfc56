"""Loads on a server of any kind: what is counted of them."""

from __future__ import annotations

from bench.scripted import Scripted, http, serving

from experiments.common.loads import Answers, post, run_once


async def test_answers_behind_the_time_of_a_load_are_latencies_and_not_in_time() -> None:
    answers = Answers()
    async with serving(lambda connection, request: http({"y": 1})) as server:
        payloads = [post("/predict", server.port, b"{}", "X-Test: 1")]
        found = await run_once(payloads, server.port, answers, 0.0, None, 0, connections=2)
    assert len(found.latency_ns) == len(server.requests) == 2
    assert not found.in_time.any()
    assert list(answers.first) == [0]
    head, body = server.requests[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /predict HTTP/1.1\r\n")
    assert b"\r\nX-Test: 1\r\nContent-Length: 2" in head
    assert body == b"{}"


async def test_refused_requests_are_faults() -> None:
    def refused(connection: Scripted, request: bytes) -> bytes:
        return http({"error": "full"}, 429)

    async with serving(refused) as server:
        found = await run_once([post("/x", server.port, b"{}")], server.port, Answers(), 0.02, 1000.0, seed=1)
    assert len(found.faults) == len(server.requests) > 0
    assert found.faults[0].startswith("status 429")
    assert not len(found.latency_ns)
