"""Bodies too large, or far ahead of their answers: refused in time, with an answer, and in bounded memory."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .server import MIB, Server
from .wire import ECHO, Wire, infer


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
