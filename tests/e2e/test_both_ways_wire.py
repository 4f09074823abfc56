"""Requests in pieces, in a row, and of rare kinds, some of which leave the fast path: see test_both_ways.py."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import pytest

from .examples import PROTOCOLS, Example, example, large
from .mistakes import ECHO, TYPED, tensor
from .server import Server
from .wire import PATTERNS, Wire, get, infer, once, post


class Pieced:
    """A connection on which each piece is read by the server before the next is sent."""

    def __init__(self, wire: Wire, other: Wire) -> None:
        self.wire = wire
        self._other = other

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self.wire.send(piece)
            await self._other.seen()


@pytest.fixture
async def pieced(server: Server) -> AsyncIterator[Pieced]:
    async with await Wire.open(server.host) as wire, await Wire.open(server.host) as other:
        yield Pieced(wire, other)


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
        assert answer.status != 200 or number == 8 or example(number).answered(answer)
    rare = {8: 200, 14: 400, 21: 500, 39: 400}
    assert statuses == [rare.get(number, 200) for number in numbers]
    assert example(0).answered(await pieced.wire.call(example(0).wire()))


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
        assert example(number).answered(await pieced.wire.answer())


async def test_a_client_that_reads_late(server: Server, pieced: Pieced) -> None:
    """It sends 100 requests with answers of 130 KB before it reads the first: they are whole and in order."""
    async with await Wire.open(server.host, receive_buffer=4096) as wire:
        wire.send(b"".join(large(number).wire() for number in range(100)))
        await pieced.send(*[b"".join(example(number).wire() for number in range(100))])  # others are served meanwhile
        for number in range(100):
            assert example(number).answered(await pieced.wire.answer())
        for number in range(100):
            assert large(number).answered(await wire.answer())


async def test_a_model_with_a_decoder(pieced: Pieced) -> None:
    """Its own code decodes bodies, for as long as it likes; the same head again and again, and others behind it."""
    wire, text = pieced.wire, {"Content-Type": "text/plain"}
    for word in (b"one", b"two", b"six"):
        request, expected = post("/predict/words", word, text), b'{"shout":"%s","size":3}' % word.upper()
        assert (await wire.call(request)).body == expected
        await pieced.send(request[:-1])
        assert (await wire.call(request[-1:])).body == expected
        wire.send(request + request + example(1).wire())
        assert [(await wire.answer()).body for _ in range(2)] == [expected] * 2
        assert example(1).answered(await wire.answer())


async def test_a_model_that_comes_and_goes(server: Server, pieced: Pieced) -> None:
    """The same request on the same connection is answered as things are when it comes."""
    request, orders = post("/predict/labelled", b"[1, 9, 3]", TYPED), "/v2/repository/models/labelled/"
    async with await Wire.open(server.host) as second:
        for wire in (pieced.wire, second):
            assert (await wire.call(request)).status == 200
        assert (await once(server.host, post(orders + "unload", b""))).status == 200
        assert (await pieced.wire.call(request)).status == 503
        assert await pieced.wire.ended()
        assert (await once(server.host, post(orders + "load", b""))).status == 200
        assert (await second.call(request)).status == 200


def padded(asked: Example, size: int = 300 << 10) -> bytes:
    return post(asked.path, asked.body.ljust(size), asked.headers)


async def test_bodies_of_many_sizes(pieced: Pieced) -> None:
    """Among them sizes at which it is decided how a body is read and decoded; in one piece, and in two."""
    asked = PROTOCOLS["V2 JSON"](1)
    for size in (65535, 65536, 65537, 131071, 131072, 131073, 300 << 10):
        request = padded(asked, size)
        assert asked.answered(await pieced.wire.call(request))
        await pieced.send(request[:-1])
        assert asked.answered(await pieced.wire.call(request[-1:]))


async def test_rare_kinds_between_plain_ones(pieced: Pieced) -> None:
    """Each on one connection with plain requests before and after it."""
    wire = pieced.wire
    for number, rare in enumerate([Example.chunked, Example.packed, padded] * 2):
        assert example(number).answered(await wire.call(example(number).wire()))
        asked = PROTOCOLS["V2 JSON"](number)
        assert asked.answered(await wire.call(rare(asked)))
    head, _, body = example(3).wire({"Expect": "100-continue"}).partition(b"\r\n\r\n")
    assert (await wire.call(head + b"\r\n\r\n")).status == 100
    assert example(3).answered(await wire.call(body))
    assert example(4).answered(await wire.call(example(4).wire()))
    assert (await wire.call(get("/v2/health/live"))).status == 200
    assert example(5).answered(await wire.call(example(5).wire()))


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_connections_that_end(server: Server, version: bytes) -> None:
    """HTTP/1.0, and Connection: close: the answer says so too, and nothing follows it."""
    for number in range(len(PROTOCOLS)):
        asked = example(number)
        request = asked.wire({"Connection": "close"}) if version == b"1.1" else asked.wire()
        async with await Wire.open(server.host) as wire:
            answer = await wire.call(request.replace(b" HTTP/1.1\r\n", b" HTTP/%s\r\n" % version))
            assert asked.answered(answer)
            assert answer.headers["connection"] == "close"
            assert await wire.ended()
