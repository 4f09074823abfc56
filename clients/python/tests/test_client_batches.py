"""Batches that the server would not take in one request: cut, sent, joined. All rows come back in order, or none do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from fake_server import Driven, FakeServer, failing, limited, rows

from starling_client import AsyncClient, BadRequest, VersionChanged

Connect = Callable[..., Driven]


@pytest.mark.parametrize(
    ("config", "options", "count", "sizes"),
    [
        (limited(8), {}, 9, [1, 2, 2, 2, 2]),  # a quarter of the queue each, so that several wait there at once
        (limited(100), {}, 101, [20, 20, 20, 20, 21]),
        ({"max_batch_size": 4}, {}, 9, [3, 3, 3]),  # Triton
        ({"parameters": ["nonsense"]}, {}, 9, [9]),
        (None, {}, 9, [9]),
        (limited(100), {"max_rows": 4}, 10, [3, 3, 4]),
    ],
)
def test_parts(
    connect: Connect, server: FakeServer, config: Any, options: dict[str, int], count: int, sizes: list[int]
) -> None:
    server.config = config
    found = connect(server, **options).infer("double", {"x": rows(count)})
    assert sorted(server.rows) == sizes
    assert np.array_equal(found.outputs["y"], rows(count) * 2)
    assert np.array_equal(found.outputs["s"], rows(count).sum(axis=1))
    assert found.tries == len(sizes)


def test_a_part_that_is_refused_is_sent_again(connect: Connect, server: FakeServer) -> None:
    server.config = limited(4)
    server.script = [None, failing(429, Retry_After="1")]
    client = connect(server)
    found = client.infer("double", rows(5))
    assert (found.outputs["s"].tolist(), found.tries, client.waited) == ([1, 5, 9, 13, 17], 6, [1.05])


def test_a_part_that_fails_fails_all(connect: Connect, server: FakeServer) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if request.headers.get("x-request-id") == "a.3":
            return failing(400, "no")
        return server(request)

    server.config = limited(4)
    with pytest.raises(BadRequest) as raised:
        connect(answer).predict("double", {"x": rows(9)}, request_id="a")
    assert (raised.value.rows, raised.value.__notes__) == ((3, 4), ["rows 3 to 3 of 9"])


@pytest.mark.parametrize("count", [7, 8])
def test_bodies_that_are_too_large_are_halved(connect: Connect, server: FakeServer, count: int) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        if len(request.content) > 250:
            return failing(413, "body: expected at most 250 bytes")
        return server(request)

    client = connect(answer)
    assert np.array_equal(client.predict("double", {"x": rows(300)}, outputs=["y"])["y"], rows(300) * 2)
    sent = len(server.rows)
    assert max(server.rows) * 8 <= 250
    client.predict("double", {"x": rows(300)})
    assert len(server.rows) <= 2 * sent + 2  # what was learned holds: no request was too large again
    assert np.array_equal(client.predict("double", {"x": rows(count)})["y"], rows(count) * 2)


def test_parts_of_different_versions_are_not_mixed(connect: Connect, server: FakeServer) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        server.version = str(1 + len(server.rows) // 2)
        return server(request)

    server.config = limited(4)
    with pytest.raises(VersionChanged, match="by versions 1, 2, 3; call again, or name the version"):
        connect(answer).predict("double", {"x": rows(5)})


def test_a_model_that_was_changed_before_a_large_batch(connect: Connect, server: FakeServer) -> None:
    """That its parts fail reaches the call, which asks for the metadata again, and how many rows there may be."""
    server.config = limited(4)
    client = connect(server)
    client.predict("double", {"x": rows(2)})
    server.name_of_input, server.config = "z", limited(8)
    server.rows.clear()
    assert np.array_equal(client.predict("double", rows(9), outputs=["y"]), rows(9) * 2)
    assert sorted(server.rows) == [1, 2, 2, 2, 2]


def test_a_queue_that_became_shorter(connect: Connect, server: FakeServer) -> None:
    """As the server says that a request has too many rows, it is asked again how many there may be."""
    most = 100

    def answer(request: httpx.Request) -> httpx.Response:
        server.config = limited(most)
        reply = server(request)
        if request.method == "POST" and server.rows[-1] > most:
            return failing(400, f"{server.rows.pop()} rows in one request")
        return reply

    client = connect(answer)
    client.predict("double", {"x": rows(9)})
    most = 8
    assert np.array_equal(client.predict("double", {"x": rows(9)})["y"], rows(9) * 2)
    assert sorted(server.rows) == [1, 2, 2, 2, 2, 9]
    asked = len(server.asked)
    with pytest.raises(ValueError, match="input 'x'"):  # nothing has changed: each is asked once more, and no more
        client.predict("double", {"x": [["a", "b"]]})
    assert server.paths[asked:] == ["/v2/models/double", "/v2/models/double/config"]


async def test_parts_go_together_up_to_a_bound() -> None:
    server, under_way, most = FakeServer(config=limited(4)), 0, 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range(3):
            await asyncio.sleep(0)
        under_way -= 1
        return server(request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    async with http, AsyncClient("fake", parallel=3, http=http) as client:
        found = await client.predict("double", {"x": rows(20)})
    assert np.array_equal(found["y"], rows(20) * 2)
    assert most == 3
    with pytest.raises(ValueError, match="parallel"):
        AsyncClient("fake", parallel=0)


async def test_the_first_part_that_fails_ends_the_others() -> None:
    server, waiting, cancelled = FakeServer(config=limited(4)), asyncio.Event(), 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal cancelled
        if request.method == "POST" and request.headers["x-request-id"] == "a.0":
            await waiting.wait()
            return failing(400, "no")
        if request.method == "POST":
            waiting.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1
                raise
        return server(request)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        with pytest.raises(BadRequest, match="no"):
            await AsyncClient("fake", http=http).predict("double", {"x": rows(20)}, request_id="a")
    assert cancelled == 3
    assert server.rows == []
