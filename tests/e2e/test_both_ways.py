"""Answers, headers and errors are the same on both ways in which an inference request is taken, to whatever client.

The server takes such a request in its HTTP protocol, or through ASGI if there is a Content-Encoding. Whoever asks
cannot tell which way it was: the answer is the same. tests/test_http has most of it in process.
"""

from __future__ import annotations

import gzip
import re

import pytest

from .examples import PROTOCOLS, Example, example
from .server import Server
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
        *((path, b"[", 400, "body: not valid JSON: unexpected end of data: line 1 column 2 (char 1)")
          for path in ("/predict/echo", "/v1/models/echo:predict")),
        ("/v2/models/plus/versions/3/infer", b"{}", 404,
         "Request for unknown model: 'plus' version 3 is not found; versions: 1, 2"),
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
