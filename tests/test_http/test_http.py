"""Bodies within bounds, and compression: the pieces of the inference path that know bytes and nothing else."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from starlette.types import Message

from app.errors import BadRequest, QueueFull, TooLarge, UnsupportedMedia
from app.http.answers import compress, wanted_encoding
from app.http.body import HeldBodies, inflate

from .echo import INFER, LIMITS, Caller, Echo, body

Receive = Callable[[], Awaitable[Message]]


def part(data: bytes, *, more: bool = False) -> Message:
    return {"type": "http.request", "body": data, "more_body": more}


GONE: Message = {"type": "http.disconnect"}


def receiving(*messages: Message) -> Receive:
    """The messages in turn, each after a turn of the loop. After the last one it waits for ever."""
    left = list(messages)

    async def receive() -> Message:
        await asyncio.sleep(0)
        if not left:
            await asyncio.Event().wait()
        return left.pop(0)

    return receive


def test_declared_lengths() -> None:
    bodies = HeldBodies(replace(LIMITS, body=100))
    bodies.check(100, 150)
    with pytest.raises(TooLarge, match="at most 100 bytes, got 101"):
        bodies.check(101, 150)
    bodies.held = 60
    with pytest.raises(QueueFull) as caught:
        bodies.check(100, 150)
    assert caught.value.retry_after_s


BEGUN = part(b"a" * 700, more=True)


@pytest.mark.parametrize(
    ("messages", "status", "words"),
    [
        ([BEGUN, GONE], 499, "went away before its body had arrived"),
        ([BEGUN, BEGUN], 413, "at most 1000 bytes, got 1400"),
        ([BEGUN], 408, "did not arrive within 0.01 s"),
        ([], 408, "did not arrive within 0.01 s"),
    ],
)
async def test_chunked_bodies_that_end_early(model: Echo, messages: list[Message], status: int, words: str) -> None:
    call = Caller(model, "asgi")
    call.resources.limits = replace(LIMITS, body_timeout_s=0.01)
    reply = await call.asgi(INFER, receiving(*messages))
    assert reply.status == status
    assert words in reply.error
    assert (reply.headers.get(b"connection") == b"close") == (status != 499), "the rest may come later, or without end"
    assert call.resources.bodies.held == 0


async def test_bytes_of_chunked_bodies_count_as_they_come(model: Echo) -> None:
    call = Caller(model, "asgi")
    bodies = call.resources.bodies
    waiting = [asyncio.create_task(call.asgi(INFER, receiving(BEGUN))) for _ in range(2)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert bodies.held == 1400
    assert (await call.asgi(INFER, receiving(part(b"a" * 601)))).status == QueueFull.status
    assert (await call.asgi(INFER, receiving(part(b"a" * 600)))).status == BadRequest.status  # no JSON
    assert bodies.held == 1400
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert bodies.held == 0


async def test_bytes_of_plain_bodies_count_as_they_come(model: Echo) -> None:
    """The lengths of their heads do not: a client may send one, and then nothing."""
    call = Caller(model, "direct")
    connections = [call.connection() for _ in range(3)]
    for connection in connections:
        connection.send(b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n" % INFER.encode())
    assert call.resources.bodies.held == 0
    for connection in connections:
        connection.send(b" " * 900)
    assert [connection.transport.written[9:12] for connection in connections] == [b"", b"", b"429"]
    assert call.resources.bodies.held == 1800
    for connection in connections:
        connection.hang_up()
    assert call.resources.bodies.held == 0


async def test_a_compressed_body_counts_in_both_forms(call: Caller) -> None:
    packed = gzip.compress(body())
    call.model.opened = False
    answering = asyncio.create_task(call(INFER, packed, {b"content-encoding": b"gzip"}))
    await call.model.ran.wait()
    assert call.resources.bodies.held == len(packed) + len(body())
    call.model.opened = True
    call.model.leases[0].submit(call.model.leases[0]._waiter)
    assert (await answering).status == 200


DATA = b"some text " * 50


def bare(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


@pytest.mark.parametrize(
    ("packed", "name"),
    [
        (gzip.compress(DATA), b"gzip"),
        (compress(DATA, "gzip"), b"x-gzip"),
        (bare(DATA), b"deflate"),
        (gzip.compress(DATA[:99]) + gzip.compress(b"") + gzip.compress(DATA[99:]), b"gzip"),  # RFC 1952, 2.2
        (compress(DATA, "gzip"), b"gzip"),
        (compress(DATA, "deflate"), b"deflate"),
    ],
)
def test_inflate(packed: bytes, name: bytes) -> None:
    assert inflate(packed, name, len(DATA)) == DATA
    with pytest.raises(TooLarge, match=str(len(DATA) - 1)):
        inflate(packed, name, len(DATA) - 1)
    with pytest.raises(BadRequest):
        inflate(packed[:-5], name, len(DATA))


@pytest.mark.parametrize(
    ("packed", "name", "error", "words"),
    [
        (DATA, b"gzip", BadRequest, "not valid gzip"),
        (b"", b"gzip", BadRequest, "truncated gzip"),
        (gzip.compress(DATA) + b"x", b"gzip", BadRequest, "truncated gzip"),
        (gzip.compress(DATA) + b"xy", b"gzip", BadRequest, "not valid gzip"),
        (gzip.compress(b"") * 4097, b"gzip", BadRequest, "20 bytes after the end"),
        (compress(DATA, "deflate") * 2, b"deflate", BadRequest, "bytes after the end"),
        (DATA, b"br", UnsupportedMedia, "'br'"),
        (DATA, b"gzip, deflate", UnsupportedMedia, "gzip, deflate"),
    ],
)
def test_what_does_not_inflate(packed: bytes, name: bytes, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        inflate(packed, name, 10_000)


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, None),
        (b"gzip", "gzip"),
        (b"deflate, gzip;q=0.5", "gzip"),
        (b"gzip;q=0, deflate", "deflate"),
        (b"gzip; q=0.000", None),
    ],
)
def test_wanted_encoding(accept: bytes | None, expected: str | None) -> None:
    assert wanted_encoding(accept, 100_000) == expected
    assert wanted_encoding(accept, 100) is None  # not worth it
