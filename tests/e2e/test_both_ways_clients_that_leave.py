"""Clients that leave and bodies that do not come; some are too long for the fast path: see test_both_ways.py."""

from __future__ import annotations

import asyncio
import socket
import struct

from .server import PATIENCE_S, Gate, Server, eventually
from .test_both_ways import check_error
from .wire import Wire, infer

PATHS = ("/v2/models/{}/infer", "/v1/models/{}:predict", "/predict/{}")
RESET = struct.pack("ii", 1, 0)  # SO_LINGER of 0 s: closing sends RST instead of FIN


def head(path: str, length: int) -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: a\r\nX-Request-ID: mine\r\nContent-Length: %d\r\n\r\n" % (path.encode(), length)


def test_clients_that_leave_while_they_wait(server: Server, gate: Gate) -> None:
    """By FIN, by RST, or by saying that they send no more: their rows are not run."""
    host, _, port = server.host.partition(":")
    before, used = server.outcomes("gate"), server.slots("gate")
    clients = [socket.create_connection((host, int(port)), PATIENCE_S) for _ in range(8)]
    try:
        for number, client in enumerate(clients):
            client.sendall(infer("gate", [840 + number]))
        eventually(lambda: server.slots("gate") == used + 8)
        for client in clients[:2]:
            client.close()
        for client in clients[2:4]:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
        for client in clients[4:6]:
            client.shutdown(socket.SHUT_WR)
        eventually(lambda: server.slots("gate") == used + 2)
        assert server.waiting("gate") == 2
    finally:
        gate.open()
    assert [client.recv(12) for client in clients[6:]] == [b"HTTP/1.1 200"] * 2
    assert [client.recv(12) for client in clients[4:6]] == [b""] * 2
    for client in clients[4:]:
        client.close()
    assert sorted(value for value in gate.ran() if 840 <= value < 850) == [846, 847]
    assert (server.outcomes("gate") - before)["client_gone"] == 6


async def test_bodies_that_do_not_come(server: Server) -> None:
    """408 to each; it closes the connection. A client that leaves instead is counted."""
    before = server.outcomes("echo")

    async def wait(path: str, length: int, begun: bytes) -> None:
        async with await Wire.open(server.host) as wire:
            answer = await wire.call(head(path.format("echo"), length) + begun)
            check_error(answer, 408, "the body did not arrive within 1 s", connection="close")

    async with asyncio.TaskGroup() as group:
        for path in PATHS:
            for length, begun in ((2, b""), (2, b"{"), (200_000, b"{"), (200_000, b" " * 150_000)):
                group.create_task(wait(path, length, begun))
            async with await Wire.open(server.host) as gone:
                gone.send(head(path.format("echo"), 2) + b"{")
    await asyncio.to_thread(
        eventually, lambda: server.outcomes("echo") - before == {"body_timeout": 12, "client_gone": 3}
    )
