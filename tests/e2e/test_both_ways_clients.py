"""The clients that people use, on both ways in which an inference request is taken: see test_both_ways.py."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

import aiohttp
import httpx
import pytest

from .examples import PROTOCOLS, example
from .mistakes import ECHO, tensor
from .server import PATIENCE_S, Reply, Server
from .test_both_ways import WAYS

Post = Callable[[str, bytes, Mapping[str, str]], Reply]
LARGE = tensor(500, 4, [0.5] * 2000)  # its answer is compressed for a client that accepts it


def lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def http_client(server: Server, *, apart: bool = False) -> Iterator[Post]:
    """Python's own: head and body are two writes. `apart`: the server has read the head before the body leaves."""
    with closing(http.client.HTTPConnection(server.host, timeout=PATIENCE_S)) as connection:
        connection.connect()
        first = connection.sock

        def post(path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
            connection.putrequest("POST", path)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders()
            if apart:
                server.get("/v2/health/live")
            connection.send(body)
            answer = connection.getresponse()
            data = answer.read()
            assert connection.sock is first  # it was kept
            return Reply(answer.status, lower(answer.headers), data)

        yield post


@contextmanager
def http_client_apart(server: Server) -> Iterator[Post]:
    with http_client(server, apart=True) as post:
        yield post


@contextmanager
def with_httpx(server: Server) -> Iterator[Post]:
    with httpx.Client(base_url=f"http://{server.host}", timeout=PATIENCE_S) as client:

        def post(path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
            answer = client.post(path, content=body, headers=headers)
            return Reply(answer.status_code, lower(answer.headers), answer.content)

        yield post


@WAYS
@pytest.mark.parametrize("client", [http_client, http_client_apart, with_httpx])
def test_kept_connections(server: Server, client: Callable[[Server], Iterator[Post]], way: Mapping[str, str]) -> None:
    """Every protocol in turn, with a mistake after each and a large answer in the end."""
    with client(server) as post:
        for number in range(2 * len(PROTOCOLS)):
            asked = example(number)
            answer = post(asked.path, asked.body, {**asked.headers, **way})
            assert (answer.status, answer.body) == (200, asked.answer)
            assert asked.says.items() <= answer.headers.items()
            assert post(asked.path, b"[", {"Content-Type": "application/json", **way}).status == 400
        answer = post(ECHO, LARGE, way)
        assert answer.json()["outputs"][0]["data"] == [0.5] * 2000


@WAYS
async def test_aiohttp(server: Server, way: Mapping[str, str]) -> None:
    """100 requests at once over 10 connections."""
    async with aiohttp.ClientSession(f"http://{server.host}", connector=aiohttp.TCPConnector(limit=10)) as session:

        async def call(number: int) -> bool:
            asked = example(number)
            async with session.post(asked.path, data=asked.body, headers={**asked.headers, **way}) as answer:
                return (answer.status, await answer.read()) == (200, asked.answer)

        assert all(await asyncio.gather(*map(call, range(100))))
        async with session.post(ECHO, data=LARGE, headers=way) as answer:
            assert json.loads(await answer.read())["outputs"][0]["data"] == [0.5] * 2000
            assert answer.headers["content-encoding"] == "gzip"
