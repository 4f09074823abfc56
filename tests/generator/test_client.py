"""Each request ends once, with an answer or with the reason why there is none, whatever the server does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadtest.generator import client
from loadtest.generator.client import ConnectionPool, TimedRequest
from loadtest.generator.plan import Target

from .scripted import Scripted, http, sends, serving

GET = b"GET /%d HTTP/1.1\r\n\r\n"
OK = http(b"yes")


class Rig:
    """A pool, `count` requests that it has been offered, and the ends that it tells of."""

    def __init__(self, pool: ConnectionPool, count: int) -> None:
        self.pool = pool
        self.ends: list[tuple[int, str]] = []
        self._all = asyncio.get_running_loop().create_future()
        self._count = count
        self.log = [TimedRequest(client.clock(), number) for number in range(count)]
        pool.begin(self._end)
        for request in self.log:
            pool.offer(request)

    def _end(self, request: TimedRequest) -> None:
        self.ends.append((request.pick, request.fault))
        if len(self.ends) == self._count:
            self._all.set_result(None)

    async def done(self) -> list[tuple[int, str]]:
        await asyncio.wait_for(asyncio.shield(self._all), 20)
        return sorted(self.ends)


@asynccontextmanager
async def rig(port: int, count: int, limit: int = 4, timeout_s: float = 20) -> AsyncIterator[Rig]:
    target = Target.parse(f"127.0.0.1:{port}")
    payloads = [GET % n for n in range(count)]
    async with ConnectionPool(target, payloads, lambda pick, response: pick, limit=limit, timeout_s=timeout_s) as pool:
        yield Rig(pool, count)


def path(request: bytes) -> int:
    return int(request.split()[1][1:])


async def test_answers_and_their_times() -> None:
    async with serving(
        lambda _, request: http(b"%d" % path(request), X_Batch_Size=3, Server_Timing="total;dur=1")
    ) as server:
        async with rig(server.port, 20) as run:
            assert await run.done() == [(request, "") for request in range(20)]
        log = run.log
        assert [(one.answer, one.status) for one in log] == [(number, 200) for number in range(20)]
        assert all(b"\r\nx-batch-size: 3\r\nserver-timing: total;dur=1" in one.head for one in log)
        assert all(one.intended <= one.offered <= one.sent < one.ended for one in log)
        assert 1 <= len(server.connections) <= 4


async def test_waits_for_a_connection_and_says_so() -> None:
    held: list[Scripted] = []

    def hold(connection: Scripted, request: bytes) -> bytes | None:
        if path(request) == 2:
            for other in held:
                other.transport.write(OK)
            return OK
        held.append(connection)
        if len(held) == 2:  # both connections are taken: now one answer, which makes room for the third request
            held.pop(0).transport.write(OK)
        return None

    async with serving(hold) as server, rig(server.port, 3, limit=2) as run:
        assert await run.done() == [(0, ""), (1, ""), (2, "")]
        assert run.pool.most == 2
        first, second, third = run.log
        assert third.sent >= min(first.ended, second.ended) > third.offered


def once(connection: Scripted, request: bytes) -> bytes | None:
    """Answers the first request of each connection, and closes it at the second."""
    if not connection.served:
        return OK
    connection.transport.close()
    return None


@pytest.mark.parametrize(
    ("script", "status", "kind", "connections"),
    [
        pytest.param(lambda _, request: http(b"busy", 429), 429, "status 429", 1, id="another-status-keeps-it"),
        pytest.param(sends(b"HTTP/1.1 200 OK\r\n\r\nyes", close=True), 200, "", 3, id="a-body-that-ends-with-it"),
        pytest.param(once, 200, "", 3, id="one-that-was-used-and-closed-is-replaced"),
        pytest.param(sends(b"", close=True), 0, "closed", 3, id="no-answer"),
        pytest.param(sends(OK[:-1], close=True), 0, "closed", 3, id="half-an-answer"),
        pytest.param(sends(b"SSH-2.0\r\n\r\n", close=False), 0, "malformed", 3, id="no-http"),
        pytest.param(sends(OK + b"more", close=False), 0, "malformed", 3, id="more-than-an-answer"),
    ],
)
async def test_what_ends_a_request_and_whether_its_connection_is_used_again(script, status, kind, connections) -> None:
    async with serving(script) as server, rig(server.port, 3, limit=1) as run:
        faults = [fault for _, fault in await run.done()]
    assert [fault.partition(":")[0] for fault in faults] == [kind] * 3
    assert [one.status for one in run.log] == [status] * 3
    assert len(server.connections) == connections


async def test_no_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_SWEEP_S", 0.001)
    async with serving(lambda _, request: None) as server, rig(server.port, 5, limit=2, timeout_s=0.01) as run:
        faults = {fault for _, fault in await run.done()}
    assert faults == {"timeout: no answer after 0.01 s"}
    assert not any(one.status for one in run.log)


async def test_queue_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_WAITING", 2)
    async with serving(lambda _, request: OK) as server, rig(server.port, 5, limit=1) as run:
        ends = await run.done()  # of requests that come before a connection is open
    assert [fault.partition(":")[0] for _, fault in ends] == ["", "", "client queue", "client queue", "client queue"]


async def test_answer_that_nobody_asked_for_ends_the_connection() -> None:
    async with serving(lambda _, request: OK) as server, rig(server.port, 1) as run:
        await run.done()
        server.connections[0].transport.write(http(b"idle", 408))
        await asyncio.wait_for(server.connections[0].lost.wait(), 20)
        again = Rig(run.pool, 1)
        assert await again.done() == [(0, "")]
        assert len(server.connections) == 2


async def test_leaving_closes_what_is_open() -> None:
    both = asyncio.Event()

    def silent(connection: Scripted, request: bytes) -> None:
        if len(connection.server.requests) == 2:
            both.set()

    async with serving(silent) as server:
        async with rig(server.port, 2) as run:
            await asyncio.wait_for(both.wait(), 20)
        for connection in server.connections:
            await asyncio.wait_for(connection.lost.wait(), 20)
    assert run.ends == []


async def test_tls_is_spoken_where_the_url_says_so() -> None:
    target = Target.parse("https://127.0.0.1:1")
    pool = ConnectionPool(target, [], lambda pick, response: 0, limit=1, timeout_s=1)
    assert isinstance(pool._tls, ssl.SSLContext)
