"""Bodies too large, too slow or never ending: refused in time, with an answer, and in bounded memory."""

from __future__ import annotations

import asyncio
import gzip
import json
import select
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from .server import MIB, PATIENCE_S, Server, eventually
from .wire import Wire, infer

INFER = "/v2/models/echo/infer"
GOOD = json.dumps({"inputs": [{"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}).encode()


def test_a_gzip_bomb_takes_no_memory(server: Server) -> None:
    bomb = gzip.compress(bytes(256 * MIB), 9)
    assert len(bomb) < MIB
    before = server.peak_memory()
    answer = server.post(INFER, bomb, {"Content-Encoding": "gzip"})
    assert answer.status == 413
    assert server.peak_memory() - before < 32 * MIB


def test_too_large(server: Server) -> None:
    limit = 4 * MIB
    answer = server.post(INFER, b" " * (limit + 1))
    assert (answer.status, str(limit) in answer.error) == (413, True)
    answer = server.post(INFER, b" " * (MIB + 1))
    assert (answer.status, "JSON" in answer.error) == (413, True)


def test_a_refusal_reaches_who_is_still_sending(server: Server) -> None:
    """A model that is not ready is known from the path: the body is not read, and its sender must not see a reset."""
    for _ in range(5):
        answer = server.post("/v2/models/broken/infer", b" " * (3 * MIB))
        assert (answer.status, "retry-after" in answer.headers) == (503, True)
        assert server.post("/v2/models/nobody/infer", b" " * (3 * MIB)).status == 404


def exchange(server: Server, sent: bytes) -> bytes:
    """Send bytes on a connection and read until its end, or until an answer's body is complete."""
    host, _, port = server.host.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        connection.sendall(sent)
        received = b""
        while part := connection.recv(65536):
            received += part
            head, split, rest = received.partition(b"\r\n\r\n")
            if split:
                length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line[:15] == b"content-length:")
                if len(rest) >= length:
                    return received
        return received


def test_a_slow_body_is_answered_408(server: Server) -> None:
    answer = exchange(server, b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{" % INFER.encode())
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b'{"error": "the body did not arrive within 1 s"}' in answer


def test_a_chunked_body(server: Server) -> None:
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" % INFER.encode()
    good = head + b"%x\r\n%s\r\n0\r\n\r\n" % (len(GOOD), GOOD)
    assert exchange(server, good).startswith(b"HTTP/1.1 200 ")
    chunk = b"10000\r\n" + b" " * 0x10000 + b"\r\n"
    endless = head + chunk * (4 * MIB // 0x10000 + 1)
    assert exchange(server, endless).startswith(b"HTTP/1.1 413 ")


def test_no_length(server: Server) -> None:
    answer = exchange(server, b"POST %s HTTP/1.1\r\nHost: a\r\n\r\n" % INFER.encode())
    assert answer.startswith(b"HTTP/1.1 411 ")
    assert b"Content-Length" in answer


async def test_pipelining_takes_no_memory(server: Server) -> None:
    """Requests far ahead of their answers stay where they are until it is their turn: with the client."""
    before = await asyncio.to_thread(server.peak_memory)
    async with await Wire.open(server.host) as wire:
        wire.send(infer("echo", [1, 2, 3, 4]) * 60_000)  # 9 MB
        for _ in range(2000):
            assert (await wire.answer()).status == 200
        assert await asyncio.to_thread(server.peak_memory) - before < 32 * MIB


def test_many_bombs_at_once(start: Callable[..., Server], threads: ThreadPoolExecutor) -> None:
    """What a body unpacks to counts as bytes in flight, too: the bound holds for all clients together."""
    server = start("narrow", flags=("--max-body-mib", "16", "--max-inflight-mib", "32"))
    bomb = gzip.compress(b" " * (15 * MIB))
    path = "/v2/models/narrow/infer"
    server.post(path, bomb, {"Content-Encoding": "gzip"})
    before = server.peak_memory()
    answers = list(threads.map(lambda _: server.post(path, bomb, {"Content-Encoding": "gzip"}), range(64)))
    assert {answer.status for answer in answers} <= {413, 429}
    assert server.peak_memory() - before < 256 * MIB
    assert server.infer("narrow", [[1]]).status == 200


def test_too_many_bytes_in_flight(start: Callable[..., Server]) -> None:
    """Bodies that arrive slowly are counted as they come; who is too much is told to come back."""
    server = start("narrow", flags=("--max-inflight-mib", "1", "--body-timeout-s", "60"))
    host, _, port = server.host.partition(":")
    path = "/v2/models/narrow/infer"
    head = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %%d\r\n\r\n" % path.encode()

    def refused() -> bool:
        """By the length that is declared: of the body nothing is sent."""
        with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
            connection.sendall(head % 200_000)
            return bool(select.select([connection], [], [], 0.05)[0]) and connection.recv(12) == b"HTTP/1.1 429"

    assert not refused()
    with socket.create_connection((host, int(port)), PATIENCE_S) as slow:
        slow.sendall(head % MIB + b" " * (MIB - 100_000))
        eventually(refused)  # once so much of it has been read
        answer = server.post(path, b" " * 200_000)
        assert (answer.status, "retry-after" in answer.headers) == (429, True)
        assert server.get("/v2/health/live").status == 200
    eventually(lambda: server.post(path, b" " * 200_000).status == 400)


def test_too_many_connections(start: Callable[..., Server]) -> None:
    """These have sent half a body: an idle one would make room after a second."""
    server = start("narrow", flags=("--max-connections", "8"))
    host, _, port = server.host.partition(":")
    idle = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(8)]
    for connection in idle:
        connection.sendall(b"POST /predict/narrow HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n[")
    answer = server.infer("narrow", [[1]])
    assert (answer.status, "connections" in answer.error, "retry-after" in answer.headers) == (503, True, True)
    for path in ("/v2/health/live", "/readyz", "/ping"):  # probes are answered all the same
        assert [server.request(method, path).status for method in ("GET", "HEAD")] == [200, 200]
    assert server.get("/metrics").status == 200
    for connection in idle:
        connection.close()
    answers = (server.infer("narrow", [[1]]) for _ in range(1000))
    assert next(answer for answer in answers if answer.status != 503).status == 200
