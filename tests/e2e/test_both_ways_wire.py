"""Requests in pieces and of rare kinds, clients that leave, and bodies that are too large.

Many requests in a row on one connection, and clients that read late, are in test_stress.py.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from background import eventually

from .examples import PROTOCOLS, Example, example
from .server import MIB, PATIENCE_S, Gate, Server
from .wire import ECHO, Wire, get, infer, post

RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST instead of FIN


def padded(asked: Example, size: int = 300 << 10) -> bytes:
    return post(asked.path, asked.body.ljust(size), asked.headers)


async def test_bodies_of_many_sizes(server: Server) -> None:
    """Among them sizes at which it is decided how a body is read and decoded; in one piece, and in two."""
    asked = PROTOCOLS["V2 JSON"](1)
    async with await Wire.open(server.host) as wire, await Wire.open(server.host) as other:
        for size in (65535, 65536, 65537, 131071, 131072, 131073, 300 << 10):
            request = padded(asked, size)
            assert asked.answered(await wire.call(request))
            wire.send(request[:-1])
            await other.seen()
            assert asked.answered(await wire.call(request[-1:]))


async def test_rare_kinds_between_plain_ones(server: Server) -> None:
    """Each on one connection with plain requests before and after it."""
    async with await Wire.open(server.host) as wire:
        for number, rare in enumerate([Example.chunked, Example.packed, padded] * 2):
            assert example(number).answered(await wire.call(example(number).wire()))
            asked = PROTOCOLS["V2 JSON"](number)
            assert asked.answered(await wire.call(rare(asked)))
        head, _, body = example(3).wire({"Expect": "100-continue"}).partition(b"\r\n\r\n")
        assert (await wire.call(head + b"\r\n\r\n")).status == 100
        assert example(3).answered(await wire.call(body))
        assert (await wire.call(get("/v2/health/live"))).status == 200
        assert example(5).answered(await wire.call(example(5).wire()))


def test_clients_that_leave_while_they_wait(server: Server, gate: Gate) -> None:
    """By FIN, by RST, or by saying that they send no more: their rows are not run."""
    host, _, port = server.host.partition(":")
    before, used = server.outcomes("gate"), server.slots("gate")
    clients = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(4)]
    closes, resets, shuts, stays = clients
    for number, client in enumerate(clients):
        client.sendall(infer("gate", [840 + number]))
    eventually(lambda: server.slots("gate") == used + 4)
    resets.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    closes.close()
    resets.close()
    shuts.shutdown(socket.SHUT_WR)
    eventually(lambda: server.slots("gate") == used + 1)
    gate.open()
    assert (stays.recv(12), shuts.recv(12)) == (b"HTTP/1.1 200", b"")
    stays.close()
    shuts.close()
    assert [value for value in gate.ran() if 840 <= value < 850] == [843]
    assert (server.outcomes("gate") - before)["client_gone"] == 3


async def test_bodies_that_do_not_come(server: Server) -> None:
    """408, and the connection is closed. A client that leaves instead is counted."""
    before = server.outcomes("echo")
    begun = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{" % ECHO.encode()
    async with await Wire.open(server.host) as wire, await Wire.open(server.host) as gone:
        gone.send(begun)
        gone.close()
        answer = await wire.call(begun)
        assert (answer.status, answer.json()) == (408, {"error": "the body did not arrive within 1 s"})
        assert answer.closes
    ends = {"body_timeout": 1, "client_gone": 1}
    await asyncio.to_thread(eventually, lambda: server.outcomes("echo") - before == ends)


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


def test_a_refusal_reaches_who_is_still_sending(server: Server) -> None:
    """A model that is not ready is known from the path: the body is not read, and its sender must not see a reset."""
    for _ in range(5):
        answer = server.post("/v2/models/broken/infer", b" " * (3 * MIB))
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        assert server.post("/v2/models/nobody/infer", b" " * (3 * MIB)).status == 404


async def test_a_chunked_body_without_end(server: Server) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % ECHO.encode()
    async with await Wire.open(server.host) as wire:
        chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
        assert (await wire.call(head + chunk * (4 * MIB // 0x10000 + 1))).status == 413


async def test_pipelining_takes_no_memory(server: Server) -> None:
    """Requests far ahead of their answers stay where they are until it is their turn: with the client."""
    before = await asyncio.to_thread(server.peak_memory)
    async with await Wire.open(server.host) as wire:
        wire.send(infer("echo", [1, 2, 3, 4]) * 60_000)  # 9 MB
        for _ in range(2000):
            assert (await wire.answer()).status == 200
        assert await asyncio.to_thread(server.peak_memory) - before < 32 * MIB


async def test_who_reads_nothing_keeps_no_connection(start: Callable[..., Server]) -> None:
    server = start("wide", flags=("--keep-alive-s", "1"))
    for request in (get("/openapi.json"), infer("wide", [1])):
        async with await Wire.open(server.host, 4096) as wire:
            wire.send(request * 400)
            await asyncio.to_thread(eventually, lambda: server.metric("starling_open_connections") == 2)
            await asyncio.to_thread(eventually, lambda: server.metric("starling_open_connections") == 1)
