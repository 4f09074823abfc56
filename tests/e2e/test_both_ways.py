"""Answers, headers and errors are the same on both ways in which an inference request is taken, to whatever client.

The server takes such a request in its HTTP protocol, or through ASGI if there is a Content-Encoding. Whoever asks
cannot tell which way it was: the answer is the same. tests/test_http has most of it in process.
"""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager

import aiohttp
import httpx
import pytest

from .examples import PROTOCOLS, Example, example
from .server import PATIENCE_S, Reply, Server
from .wire import ECHO, TYPED, Answer, Wire, post, tensor

WAYS = pytest.mark.parametrize("way", [{}, {"Content-Encoding": "identity"}], ids=["fast path", "ASGI"])
MINE = {"X-Request-ID": "mine"}
TIMING = re.compile(r"queue;dur=\d+\.\d{3}, compute;dur=\d+\.\d{3}, total;dur=\d+\.\d{3}")


def check(answer: Answer, asked: Example) -> None:
    """The whole answer to an example that ran alone, and was sent with the id `mine`."""
    assert (answer.status, answer.body) == (200, asked.answer)
    headers = answer.headers
    assert TIMING.fullmatch(headers.pop("server-timing"))
    assert headers.pop("date").endswith(" GMT")
    assert headers == {
        **asked.says, "x-batch-size": str(asked.rows), "content-length": str(len(asked.answer)), "x-request-id": "mine",
    }  # fmt: skip


@WAYS
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_answers(server: Server, protocol: str, way: dict[str, str]) -> None:
    async with await Wire.open(server.host) as wire:
        for number in range(6):
            asked = PROTOCOLS[protocol](number)
            check(await wire.call(asked.wire({**way, **MINE})), asked)


@WAYS
@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (ECHO, tensor(1, 3, [1, 2, 3]), 400, "inputs[0] (x).shape: expected shape [rows, 4], got [1, 3]"),
        ("/predict/echo", b"[", 400, "body: not valid JSON: unexpected end of data: line 1 column 2 (char 1)"),
        ("/v2/models/plus/versions/3/infer", b"{}", 404, "model 'plus' has no version '3'; versions: 1, 2"),
        ("/v2/models/narrow/infer", tensor(4, 1, [1, 2, 3, 4]), 400,
         "4 rows in one request: the queue of model 'narrow' holds 3; "
         "send at most 3 at a time, or raise max_queue (--max-queue, or in model.toml)"),
        ("/v2/models/marked/infer", tensor(3, 2, [1, 1, -1, 0, 2, 2]), 500,
         "model 'marked' failed on row 1: ValueError: a marked row"),
    ],
)  # fmt: skip
async def test_mistakes(server: Server, path: str, body: bytes, status: int, message: str, way: dict[str, str]) -> None:
    """Each is told what is wrong, and its connection goes on."""
    async with await Wire.open(server.host) as wire:
        answer = await wire.call(post(path, body, {**way, **TYPED, **MINE}))
        assert (answer.status, answer.json()) == (status, {"error": message})
        assert answer.headers.keys() == {"date", "content-type", "content-length", "x-request-id"}
        check(await wire.call(example(3).wire(MINE)), example(3))


@pytest.mark.parametrize(
    "line",
    [
        "POST /v2/models/%65cho/infer HTTP/1.1", "POST /v2/models/echo/infer?a=b HTTP/1.1",
        "POST http://a/v2/models/echo/infer HTTP/1.1", "\r\nPOST /v2/models/echo/versions/1/infer HTTP/1.1",
    ],
    ids=["percent", "a query", "an absolute URL", "an empty line before"],
)  # fmt: skip
async def test_other_spellings(server: Server, line: str) -> None:
    asked = PROTOCOLS["V2 JSON"](1)
    sent = asked.wire({"x-REQUEST-id": "mine", "Connection": "keep-alive", "Content-Encoding": "identity"})
    async with await Wire.open(server.host) as wire:
        for _ in range(2):
            check(await wire.call(line.encode() + sent[sent.index(b"\r\n") :]), asked)


async def test_compressed_answers(server: Server) -> None:
    """From a kilobyte on, for who accepts it: a request may still be taken in either way."""
    body = tensor(100, 4, [[1, 2, 3, 4]] * 100)
    async with await Wire.open(server.host) as wire:
        plain = await wire.call(post(ECHO, body))
        packed = await wire.call(post(ECHO, body, {"Accept-Encoding": "br, gzip;q=0.5"}))
        check(await wire.call(example(0).wire({"Accept-Encoding": "gzip", **MINE})), example(0))
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(packed.body) == plain.body


# the clients that people use

Post = Callable[[str, bytes, Mapping[str, str]], Reply]
LARGE = tensor(500, 4, [0.5] * 2000)  # its answer is compressed for a client that accepts it


@contextmanager
def http_client(server: Server) -> Iterator[Post]:
    """Python's own, whose head and body are two writes: the server has read the head before the body leaves."""
    with closing(http.client.HTTPConnection(server.host, timeout=PATIENCE_S)) as connection:
        connection.connect()
        first = connection.sock

        def post(path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
            connection.putrequest("POST", path)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                connection.putheader(name, value)
            connection.endheaders()
            server.get("/v2/health/live")
            connection.send(body)
            answer = connection.getresponse()
            data = answer.read()
            assert connection.sock is first  # it was kept
            return Reply(answer.status, answer.headers, data)

        yield post


@contextmanager
def with_httpx(server: Server) -> Iterator[Post]:
    with httpx.Client(base_url=f"http://{server.host}", timeout=PATIENCE_S) as client:

        def post(path: str, body: bytes, headers: Mapping[str, str]) -> Reply:
            answer = client.post(path, content=body, headers=headers)
            return Reply(answer.status_code, answer.headers, answer.content)

        yield post


@WAYS
@pytest.mark.parametrize("client", [http_client, with_httpx])
def test_kept_connections(server: Server, client: Callable[[Server], Iterator[Post]], way: Mapping[str, str]) -> None:
    """Every protocol in turn, with a mistake after each and a large answer in the end."""
    with client(server) as post:
        for number in range(len(PROTOCOLS)):
            asked = example(number)
            answer = post(asked.path, asked.body, {**asked.headers, **way})
            assert (answer.status, answer.body) == (200, asked.answer)
            assert post(asked.path, b"[", {**TYPED, **way}).status == 400
        assert post(ECHO, LARGE, way).json()["outputs"][0]["data"] == [0.5] * 2000


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
