"""Loads on a server of any kind: what is counted of them."""

from __future__ import annotations

from generator.scripted import http, serving

from experiments.common.loads import Answers, post, run_once


async def test_answers_behind_the_time_of_a_load_are_latencies_and_not_in_time() -> None:
    answers = Answers()
    async with serving(lambda connection, request: http({"y": 1})) as server:
        payloads = [post("/predict", server.port, b"{}", {"X-Test": "1"})]
        found = await run_once(payloads, server.port, answers, 0.0, None, 0, connections=2)
    assert len(found.latency_ns) == len(server.requests) == 2
    assert not found.in_time.any()
    assert list(answers.first) == [0]
    head, body = server.requests[0].split(b"\r\n\r\n")
    assert head.startswith(b"POST /predict HTTP/1.1\r\n")
    assert b"\r\nX-Test: 1\r\nContent-Length: 2" in head
    assert body == b"{}"
