"""The closed loop counts whole 200s within its seconds; the constant server answers each request once."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools

import pytest
from bench.scripted import Scripted, http, serving

from loadtest.bench import closed_loop, one_connection
from loadtest.bench.closed_loop import drive
from loadtest.bench.load import Load, LoadError, Request

REQUEST = Request("test", "/x", (("Content-Type", "text/plain"),), b"hello")


def load(port: int = 1, **changes: object) -> Load:
    return dataclasses.replace(Load(port, REQUEST, seconds=0.02, connections=2), **changes)


async def test_counts_right_answers_and_keeps_what_the_server_says() -> None:
    told = {"X_Batch_Size": 4, "Server_Timing": "queue;dur=0.5, compute;dur=1.5, total;dur=2.5"}
    async with serving(lambda connection, request: http(b"yes", **told)) as server:
        result = await drive(load(server.port, answer=b"yes", timed=3))
    assert result.failed == {}
    assert result.requests > 3 == len(result.timed)
    assert {(one.total_ms, one.queue_ms, one.compute_ms, one.batch) for one in result.timed} == {(2.5, 0.5, 1.5, 4)}
    assert all(one.latency_ms > 0 for one in result.timed)
    assert result.per_second == result.requests / 0.02


@pytest.mark.parametrize(
    ("answer", "failure"), [(http(b"yes", status=503), "status 503"), (http(b"no!"), "wrong answer")]
)
async def test_failures_are_told_apart(answer: bytes, failure: str) -> None:
    async with serving(lambda connection, request: answer) as server:
        result = await drive(load(server.port, answer=b"yes"))
    assert result.requests == 0
    assert list(result.failed) == [failure]


async def test_refusals_are_counted_by_their_status() -> None:
    """Of four requests one is answered and two are refused; the fourth fails, and is neither."""
    answers = itertools.cycle(
        [http(b"yes"), http(b"full", status=429), http(b"full", status=429), http(b"", status=500)]
    )
    async with serving(lambda connection, request: next(answers)) as server:
        result = await asyncio.to_thread(closed_loop.run, load(server.port, seconds=0.1, refusals=True))
    assert result.requests > 0
    assert abs(result.refused - 2 * result.requests) < 8
    assert abs(sum(result.failed.values()) - result.requests) < 8
    assert result.refused_per_second == result.refused / result.seconds


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (http(b"full", status=429), "429"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "Content-Length"),
        (http(b"yes")[:-1], "ended after"),
    ],
)
async def test_one_connection_takes_nothing_but_whole_200s(answer: bytes, why: str) -> None:
    def script(connection: Scripted, request: bytes) -> None:
        connection.transport.write(answer)
        connection.transport.close()

    async with serving(script) as server:
        with pytest.raises(LoadError, match=why):
            await asyncio.to_thread(one_connection.run, load(server.port, connections=1))
