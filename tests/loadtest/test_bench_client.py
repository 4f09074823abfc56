"""The load client counts whole 200s and nothing else, whatever pieces they arrive in."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from loadtest.bench import bodies
from loadtest.bench.client import answer_length, drive, header, parse_job
from loadtest.bench.constant import Constant
from loadtest.bench.load import LOOPBACK, Load, Request, percentile

REQUEST = Request("test", "/x", (("Content-Type", "text/plain"),), b"hello")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nServer-Timing: total;dur=1.5\r\n\r\nyes"


class Scripted(asyncio.Protocol):
    """Answers each arrival of bytes with the pieces given, each in a turn of the loop of its own."""

    def __init__(self, pieces: tuple[bytes, ...], hang_up: bool = False) -> None:
        self.pieces = pieces
        self.hang_up = hang_up

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for turn, piece in enumerate(self.pieces):
            loop.call_later(turn * 0.001, self.transport.write, piece)
        if self.hang_up:
            self.transport.close()


@asynccontextmanager
async def serving(protocol: Callable[[], asyncio.Protocol]) -> AsyncIterator[int]:
    server = await asyncio.get_running_loop().create_server(protocol, LOOPBACK, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0.01)  # the transports' own closing callbacks


def load(port: int, **changes: object) -> Load:
    return dataclasses.replace(Load(port, REQUEST, seconds=5.0, connections=2, max_requests=20), **changes)


@pytest.mark.parametrize(
    "pieces", [(OK,), (OK[:5], OK[5:]), (OK[:-1], OK[-1:]), tuple(OK[i : i + 9] for i in range(0, len(OK), 9))]
)
async def test_counts_answers_in_any_pieces(pieces: tuple[bytes, ...]) -> None:
    async with serving(lambda: Scripted(pieces)) as port:
        result = await drive(load(port, capture="server-timing", answer=b"yes"))
    assert result.failed == {}
    assert result.requests == 20
    assert 0 < result.p50_ms <= result.p99_ms
    assert [value for _, value in result.captured] == ["total;dur=1.5"] * 20


@pytest.mark.parametrize(
    ("pieces", "failure"),
    [
        ((OK.replace(b"200", b"503"),), "status 503"),
        ((OK.replace(b"yes", b"no!"),), "wrong answer"),
        ((b"HTTP/1.1 200 OK\r\n\r\n",), "answer without Content-Length"),
        ((OK + b"more",), "bytes after the answer"),
    ],
)
async def test_a_failure_ends_its_connection(pieces: tuple[bytes, ...], failure: str) -> None:
    async with serving(lambda: Scripted(pieces)) as port:
        result = await drive(load(port, answer=b"yes"))
    assert result.requests == 0
    assert result.failed == {failure: 2}


async def test_a_lost_connection_is_a_failure() -> None:
    async with serving(lambda: Scripted((), hang_up=True)) as port:
        result = await drive(load(port))
    assert result.failed == {"connection lost": 2}


async def test_nobody_listening_raises() -> None:
    async with serving(lambda: Scripted(())) as port:
        pass
    with pytest.raises(OSError, match="failed"):
        await drive(load(port))


async def test_the_constant_server_answers_each_request_once() -> None:
    async with serving(lambda: Constant(OK)) as port:
        big = dataclasses.replace(REQUEST, body=b"x" * 300_000)  # arrives in several pieces
        result = await drive(load(port, request=big, answer=b"yes"))
    assert (result.requests, result.failed) == (20, {})


def test_a_load_survives_the_way_to_its_process() -> None:
    original = load(1234, answer=b"\x00\xff", capture="x")
    job = dataclasses.asdict(original)
    job["request"]["body"], job["answer"] = "aGVsbG8=", "AP8="
    assert parse_job(json.dumps(job)) == original


def test_reading_heads() -> None:
    assert answer_length(OK[:20]) == 0
    assert answer_length(OK) == len(OK)
    assert answer_length(b"HTTP/1.1 200 OK\r\n\r\n") == -1
    assert header(OK, b"\r\nserver-timing:") == "total;dur=1.5"
    assert header(OK, b"\r\nabsent:") == ""


def test_percentile_is_the_nearest_rank() -> None:
    assert [percentile([1, 2, 3, 4], percent) for percent in (0, 25, 50, 99, 100)] == [1, 1, 2, 4, 4]


METADATA = {"name": "mlp", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]}


def test_json_and_binary_carry_the_same_values() -> None:
    text, raw = bodies.v2_json(METADATA), bodies.v2_binary(METADATA)
    (tensor,) = json.loads(text.body)["inputs"]
    head = int(dict(raw.headers)["Inference-Header-Content-Length"])
    assert tensor["shape"] == json.loads(raw.body[:head])["inputs"][0]["shape"] == [1, 3]
    assert struct.pack("<3f", *tensor["data"]) == raw.body[head:]


def test_checking_an_answer() -> None:
    good = b'{"outputs":[{"name":"y","shape":[1,2],"data":[1,2]}]}'
    bodies.check(bodies.v2_json(METADATA), {}, good)
    with pytest.raises(ValueError, match="shape"):
        bodies.check(bodies.v2_json(METADATA), {}, good.replace(b"[1,2]}", b"[1]}"))
    head = b'{"outputs":[{"name":"y","shape":[1,2],"parameters":{"binary_data_size":8}}]}'
    length = {"inference-header-content-length": str(len(head))}
    bodies.check(bodies.v2_binary(METADATA), length, head + bytes(8))
    with pytest.raises(ValueError, match="raw bytes"):
        bodies.check(bodies.v2_binary(METADATA), length, head + bytes(7))


def test_an_echo_may_shorten_its_digits_but_not_change_them() -> None:
    request = bodies.v2_json({**METADATA, "name": "echo"})
    sent = json.loads(request.body)["inputs"][0]["data"]
    short = [round(number, 9) for number in sent]
    assert short != sent
    bodies.check(request, {}, answer_with(short))
    with pytest.raises(ValueError, match="not the input"):
        bodies.check(request, {}, answer_with([*short[:2], 0.5]))


def answer_with(data: list[float]) -> bytes:
    return json.dumps({"outputs": [{"name": "y", "shape": [1, 3], "data": data}]}).encode()
