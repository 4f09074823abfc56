"""Answers, headers and errors are the same on both ways in which an inference request is taken.

The server takes such a request in its HTTP protocol, or through ASGI if there is a Content-Encoding. Whoever asks
cannot tell which way it was: the answer is the same.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from math import ceil

import pytest

from .examples import PROTOCOLS, Example, example
from .mistakes import ECHO, MISTAKES, tensor
from .server import Server
from .wire import Answer, Wire, post

WAYS = pytest.mark.parametrize("way", [{}, {"Content-Encoding": "identity"}], ids=["fast path", "ASGI"])
TIMING = re.compile(r"queue;dur=\d+\.\d{3}, compute;dur=\d+\.\d{3}, total;dur=\d+\.\d{3}")


def undated(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers without the date, which has been looked at."""
    left = dict(headers)
    parsedate_to_datetime(left.pop("date"))
    return left


def check(answer: Answer, asked: Example, request_id: str | None = "mine") -> None:
    """The whole answer to an example that ran alone. `request_id` is the one sent; None: the server makes one."""
    assert (answer.status, answer.body) == (200, asked.answer)
    headers = undated(answer.headers)
    assert TIMING.fullmatch(headers.pop("server-timing"))
    found = headers.pop("x-request-id")
    assert found == request_id if request_id is not None else re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]+", found)
    assert headers == {**asked.says, "x-batch-size": str(asked.rows), "content-length": str(len(asked.answer))}


def check_error(answer: Answer, status: int, message: str, request_id: str | None = "mine", **extra: str) -> None:
    """The whole answer to a mistake. Of the names of `extra` headers, underscores stand for hyphens.

    `retry_after` is the least that it may say: up to a quarter, rounded up, is added at random.
    """
    body = json.dumps({"error": message}).encode()
    assert (answer.status, answer.body) == (status, body)
    headers = {name.replace("_", "-"): value for name, value in extra.items()}
    headers |= {"content-type": "application/json", "content-length": str(len(body))}
    if request_id is not None:
        headers["x-request-id"] = request_id
    if (least := int(headers.get("retry-after", 0))) and "retry-after" in answer.headers:
        assert least <= int(answer.headers["retry-after"]) <= least + ceil(least / 4)
        headers["retry-after"] = answer.headers["retry-after"]
    assert undated(answer.headers) == headers


@WAYS
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_answers(server: Server, protocol: str, way: dict[str, str]) -> None:
    async with await Wire.open(server.host) as wire:
        for number in range(6):
            asked = PROTOCOLS[protocol](number)
            check(await wire.call(asked.wire({**way, "X-Request-ID": "mine"})), asked)


@WAYS
@pytest.mark.parametrize(("path", "headers", "body", "status", "message"), MISTAKES)
async def test_mistakes(
    server: Server, path: str, headers: dict[str, str], body: bytes, status: int, message: str, way: dict[str, str]
) -> None:
    """Each is told what is wrong, and its connection goes on."""
    async with await Wire.open(server.host) as wire:
        check_error(await wire.call(post(path, body, {**way, **headers, "X-Request-ID": "mine"})), status, message)
        check(await wire.call(example(3).wire({"X-Request-ID": "mine"})), example(3))


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
        small = await wire.call(example(0).wire({"Accept-Encoding": "gzip", "X-Request-ID": "mine"}))
    assert "content-encoding" not in plain.headers
    assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
    assert gzip.decompress(packed.body) == plain.body
    check(small, example(0))
