"""Compressed answers, mistakes, clients that leave, bodies that are too large, and clients that read late or never.

Many requests in a row on one connection, of all protocols and on both ways, are in test_stress.py; each refusal is
in tests/test_http, in process.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from background import eventually

from .server import MIB, Gate, Server
from .wire import Wire, get, infer, post, tensor

RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST instead of FIN


def test_compressed_answers(server: Server) -> None:
    """From a kilobyte on, for who accepts it, also where the body goes through ASGI."""
    for sent in ({}, {"Content-Encoding": "identity"}):
        accepting = {"Accept-Encoding": "br, gzip;q=0.5", **sent}
        plain = server.infer("echo", [[1, 2, 3, 4]] * 100, sent)
        packed = server.infer("echo", [[1, 2, 3, 4]] * 100, accepting)
        small = server.infer("echo", [[1, 2, 3, 4]], accepting)
        assert "content-encoding" not in {**plain.headers, **small.headers}
        assert (packed.headers["content-encoding"], packed.headers["vary"]) == ("gzip", "accept-encoding")
        assert gzip.decompress(packed.body) == plain.body


@pytest.mark.parametrize(
    ("path", "rows", "status", "message"),
    [
        ("plus/versions/3", [[1]], 404, "Request for unknown model: 'plus' version 3 is not found; versions: 1, 2"),
        ("narrow", [[1]] * 4, 400, "4 rows in one request: the queue of model 'narrow' holds 3; "
         "send at most 3 at a time, or raise max_queue (--max-queue, or in model.toml)"),
        ("marked", [[1, 1], [-1, 0]], 500, "model 'marked' failed on row 1: ValueError: a marked row"),
    ],
)  # fmt: skip
def test_mistakes(server: Server, path: str, rows: list[list[int]], status: int, message: str) -> None:
    answer = server.infer(path, rows)
    assert (answer.status, answer.error) == (status, message)


def test_clients_that_leave_while_they_wait(server: Server, gate: Gate) -> None:
    """By FIN, by RST, or by saying that they send no more: their rows are not run."""
    before, used = server.outcomes("gate"), server.slots("gate")
    closes, resets, shuts, stays = (server.socket() for _ in range(4))
    for number, client in enumerate((closes, resets, shuts, stays)):
        client.sendall(infer("gate", [840 + number]))
    eventually(lambda: server.slots("gate") == used + 4)
    resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    closes.close()
    resets.close()
    shuts.shutdown(socket.SHUT_WR)
    eventually(lambda: server.slots("gate") == used + 1)
    gate.open()
    with stays, shuts:
        assert (stays.recv(12), shuts.recv(12)) == (b"HTTP/1.1 200", b"")
    assert [value for value in gate.ran() if 840 <= value < 850] == [843]
    assert (server.outcomes("gate") - before)["client_gone"] == 3


# Bodies too large, or far ahead of their answers: refused in time, with an answer, and in bounded memory.


def test_bombs_take_no_memory(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    """What a body unpacks to counts as bytes in flight, too: the bound holds for all clients together."""
    server = start("narrow", flags=("--max-body-mib", "16", "--max-inflight-mib", "32"))
    path, packed = "/v2/models/narrow/infer", {"Content-Encoding": "gzip"}
    larger, bomb = gzip.compress(bytes(256 * MIB), 9), gzip.compress(b" " * (15 * MIB))
    before = server.peak_memory()
    assert server.post(path, larger, packed).status == 413
    assert server.peak_memory() - before < 64 * MIB
    answers = list(threads.map(lambda _: server.post(path, bomb, packed), range(64)))
    assert {answer.status for answer in answers} <= {413, 429}
    assert server.peak_memory() - before < 256 * MIB
    assert server.infer("narrow", [[1]]).status == 200


async def test_a_body_without_an_end_closes_its_connection(server: Server) -> None:
    """One of which no more comes, and one in chunks."""
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: a\r\n"
    chunks = b"10000\r\n%s\r\n" % bytes(0x10000) * (4 * MIB // 0x10000 + 1)
    for rest, status in ((b"Content-Length: 2\r\n\r\n{", 408), (b"Transfer-Encoding: chunked\r\n\r\n" + chunks, 413)):
        async with await Wire.open(server.host) as wire:
            answer = await wire.call(head + rest)
            assert answer.status == status
            assert answer.closes


def test_a_refusal_reaches_who_is_still_sending(server: Server) -> None:
    """A model that is not ready is known from the path: the body is not read, and its sender must not see a reset."""
    for _ in range(5):
        answer = server.post("/v2/models/broken/infer", b" " * (3 * MIB))
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        assert server.post("/v2/models/nobody/infer", b" " * (3 * MIB)).status == 404


async def test_pipelining_takes_no_memory(server: Server) -> None:
    """Requests far ahead of their answers stay where they are until it is their turn: with the client."""
    before = await asyncio.to_thread(server.peak_memory)
    async with await Wire.open(server.host) as wire:
        wire.send(infer("echo", [1, 2, 3, 4]) * 60_000)  # 9 MB
        for _ in range(2000):
            assert (await wire.answer()).status == 200
        assert await asyncio.to_thread(server.peak_memory) - before < 32 * MIB


async def test_answers_that_nobody_reads_are_held_within_the_bound(start: Callable[..., Server]) -> None:
    """A request of a kilobyte may have an answer of megabytes: further requests are refused until it is read."""
    server = start("wide", flags=("--max-inflight-mib", "4", "--max-body-mib", "1"))
    asked = post("/v2/models/wide/infer", tensor(200, 1, [1.5] * 200))  # for 16 MB, of which the system takes some
    async with await Wire.open(server.host, 4096) as wire:
        wire.send(asked)
        await asyncio.to_thread(eventually, lambda: server.metric("starling_held_bytes") > 4 * MIB)
        assert (await asyncio.to_thread(server.infer, "wide", [[1]])).status == 429
        assert (await wire.answer()).status == 200
        assert (await asyncio.to_thread(server.infer, "wide", [[1]])).status == 200
        wire.send(asked)
        await asyncio.to_thread(eventually, lambda: server.metric("starling_held_bytes") > 4 * MIB)
    await asyncio.to_thread(eventually, lambda: server.metric("starling_held_bytes") == 0)


async def test_who_reads_nothing_keeps_no_connection(start: Callable[..., Server]) -> None:
    server = start("wide", flags=("--keep-alive-s", "1"))
    for request in (get("/openapi.json"), infer("wide", [1])):
        async with await Wire.open(server.host, 4096) as wire:
            wire.send(request * 400)
            await asyncio.to_thread(eventually, lambda: server.metric("starling_open_connections") == 2)
            await asyncio.to_thread(eventually, lambda: server.metric("starling_open_connections") == 1)
