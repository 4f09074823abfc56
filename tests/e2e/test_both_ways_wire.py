"""Requests in pieces, in a row, and of rare kinds, on both ways in which they may be taken: see test_both_ways.py."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise

import pytest

from .conftest import Keeper
from .examples import PROTOCOLS, Example, example, large
from .mistakes import ECHO, tensor
from .server import Gate, Server
from .wire import Answer, Wire, get, infer, post

Pieces = Callable[[list[bytes]], list[bytes]]


@pytest.fixture
def server(keeper: Keeper, way: tuple[str, ...]) -> Server:
    return keeper.shared(*way)


class Pieced:
    """A connection on which each piece is read by the server before the next is sent."""

    def __init__(self, wire: Wire, other: Wire) -> None:
        self.wire = wire
        self._other = other

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.wire.send(piece)
            # What was sent before a request on another connection has been read when that one is answered.
            assert (await self._other.call(get("/v2/health/live"))).status == 200


@pytest.fixture
async def pieced(server: Server) -> AsyncIterator[Pieced]:
    async with await Wire.open(server.host) as wire, await Wire.open(server.host) as other:
        yield Pieced(wire, other)


def right(answer: Answer, asked: Example) -> bool:
    return (answer.status, answer.body) == (200, asked.answer)


@pytest.mark.parametrize("protocol", ["V2 JSON", "V2 raw"])
async def test_split_at_every_byte(pieced: Pieced, protocol: str) -> None:
    asked = PROTOCOLS[protocol](0)
    request = asked.wire()
    for cut in range(1, len(request)):
        await pieced.send(request[:cut])
        assert right(await pieced.wire.call(request[cut:]), asked)


async def test_byte_after_byte(pieced: Pieced) -> None:
    for asked in (PROTOCOLS["V1"](0), PROTOCOLS["V2 binary"](0)):
        await pieced.send(*(bytes([byte]) for byte in asked.wire()))
        assert right(await pieced.wire.answer(), asked)


async def test_the_next_one_begins_in_the_same_piece(pieced: Pieced) -> None:
    first, second = PROTOCOLS["V2 JSON"](1), PROTOCOLS["V2 raw"](0)
    begun = second.wire()
    for cut in range(1, len(begun)):
        await pieced.send(first.wire() + begun[:cut])
        pieced.wire.send(begun[cut:])
        assert right(await pieced.wire.answer(), first)
        assert right(await pieced.wire.answer(), second)


def halved(requests: list[bytes]) -> list[bytes]:
    """Each piece ends in the middle of a request, and in turn within its head or its body."""
    whole = b"".join(requests)
    cuts, end = [0], 0
    for number, request in enumerate(requests):
        at = len(request) // 4 if number % 2 else len(request) - 3
        cuts.append(end + at)
        end += len(request)
    return [whole[a:b] for a, b in pairwise([*cuts, end])]


PATTERNS: dict[str, Pieces] = {
    "all in one": lambda requests: [b"".join(requests)],
    "one each": lambda requests: requests,
    "cut in the middle": halved,
}


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_pipelining(pieced: Pieced, pattern: str) -> None:
    """Answers in the order of their requests, whatever these are."""
    numbers = range(1, 40)
    requests = [example(number).wire() for number in numbers]
    requests[7], requests[13], requests[38] = get("/v2/health/live"), post(ECHO, b"["), post(ECHO, b"{}")
    requests[20] = post("/v2/models/marked/infer", tensor(1, 2, [-1, 0]))
    await pieced.send(*PATTERNS[pattern](requests))
    statuses = []
    for number in numbers:
        answer = await pieced.wire.answer()
        statuses.append(answer.status)
        assert answer.status != 200 or number == 8 or right(answer, example(number))
    rare = {8: 200, 14: 400, 21: 500, 39: 400}
    assert statuses == [rare.get(number, 200) for number in numbers]
    assert right(await pieced.wire.call(example(0).wire()), example(0))


@pytest.mark.parametrize("pattern", PATTERNS)
async def test_pipelining_while_one_runs(server: Server, pieced: Pieced, pattern: str) -> None:
    """The first is held by its model: those behind it come while it is being answered."""
    assert server.gate is not None
    requests = [infer("gate", [2]), *(example(number).wire() for number in range(1, 20))]
    try:
        await pieced.send(*PATTERNS[pattern](requests))
        await asyncio.to_thread(server.gate.wait)
    finally:
        server.gate.open()
    assert json.loads((await pieced.wire.answer()).body)["outputs"][0]["data"] == [2]
    for number in range(1, 20):
        assert right(await pieced.wire.answer(), example(number))


async def test_pipelining_while_others_run(pieced: Pieced, gate: Gate) -> None:
    """Two requests in one write, while the worker is another client's."""
    try:
        await pieced.send(example(1).wire() + example(2).wire())
    finally:
        gate.open()
    assert right(await pieced.wire.answer(), example(1))
    assert right(await pieced.wire.answer(), example(2))


async def test_a_client_that_reads_late(server: Server, pieced: Pieced) -> None:
    """It sends 100 requests with answers of 60 KB before it reads the first: they are whole and in order."""
    async with await Wire.open(server.host, receive_buffer=4096) as wire:
        wire.send(b"".join(large(number).wire() for number in range(100)))
        await pieced.send(*[b"".join(example(number).wire() for number in range(100))])  # others are served meanwhile
        for number in range(100):
            assert right(await pieced.wire.answer(), example(number))
        for number in range(100):
            assert right(await wire.answer(), large(number))


def chunked(asked: Example) -> bytes:
    head, _, _ = post(asked.path, b"", asked.headers).partition(b"Content-Length")
    parts = [asked.body[at : at + 10] for at in range(0, len(asked.body), 10)]
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in [*parts, b""])


def packed(asked: Example) -> bytes:
    return post(asked.path, gzip.compress(asked.body), {**asked.headers, "Content-Encoding": "gzip"})


def padded(asked: Example, size: int = 300 << 10) -> bytes:
    return post(asked.path, asked.body.ljust(size), asked.headers)


async def test_bodies_of_many_sizes(pieced: Pieced) -> None:
    """Among them sizes at which it is decided how a body is read and decoded; in one piece, and in two."""
    asked = PROTOCOLS["V2 JSON"](1)
    for size in (65535, 65536, 65537, 131071, 131072, 131073, 300 << 10):
        request = padded(asked, size)
        assert right(await pieced.wire.call(request), asked)
        await pieced.send(request[:-1])
        assert right(await pieced.wire.call(request[-1:]), asked)


async def test_rare_kinds_between_plain_ones(pieced: Pieced) -> None:
    """Each on one connection with plain requests before and after it."""
    wire = pieced.wire
    for number, rare in enumerate([chunked, packed, padded] * 2):
        assert right(await wire.call(example(number).wire()), example(number))
        asked = PROTOCOLS["V2 JSON"](number)
        assert right(await wire.call(rare(asked)), asked)
    head, _, body = example(3).wire({"Expect": "100-continue"}).partition(b"\r\n\r\n")
    assert (await wire.call(head + b"\r\n\r\n")).status == 100
    assert right(await wire.call(body), example(3))
    assert right(await wire.call(example(4).wire()), example(4))
    assert (await wire.call(get("/v2/health/live"))).status == 200
    assert right(await wire.call(example(5).wire()), example(5))


async def test_expect_and_do_not_wait(pieced: Pieced) -> None:
    """The body follows at once: whether 100 is sent or not, the answer is whole and the connection goes on."""
    for number in range(3):
        pieced.wire.send(example(number).wire({"Expect": "100-continue"}))
        answer = await pieced.wire.answer()
        if answer.status == 100:
            answer = await pieced.wire.answer()
        assert right(answer, example(number))


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_connections_that_end(server: Server, version: bytes) -> None:
    """HTTP/1.0, and Connection: close: the answer says so too, and nothing follows it."""
    for number in range(len(PROTOCOLS)):
        asked = example(number)
        request = asked.wire({"Connection": "close"}) if version == b"1.1" else asked.wire()
        async with await Wire.open(server.host) as wire:
            answer = await wire.call(request.replace(b" HTTP/1.1\r\n", b" HTTP/%s\r\n" % version))
            assert right(answer, asked)
            assert answer.headers["connection"] == "close"
            assert await wire.ended()
