"""Open: every request goes at its instant, whatever the server does. Closed: never more in flight than agreed."""

from __future__ import annotations

import itertools

from loadtest.generator.client import ConnectionPool, TimedRequest
from loadtest.generator.drive import ClosedLoop, OpenLoop
from loadtest.generator.plan import Target

from .scripted import Scripted, Server, http, serving

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
MS = 1_000_000


def at(*instants: int) -> list[TimedRequest]:
    return [TimedRequest(instant, 0) for instant in instants]


def pool(server: Server, limit: int = 16) -> ConnectionPool:
    target = Target.parse(server.url)
    return ConnectionPool(target, [REQUEST], lambda pick, response: 0, limit=limit, timeout_s=20)


async def test_a_server_that_does_not_answer_holds_no_request_back() -> None:
    """The omission that a closed loop would make: here all requests arrive, though none has been answered."""
    count = 12

    def last_frees_all(connection: Scripted, request: bytes) -> None:
        if len(connection.server.requests) == count:
            for other in connection.server.connections:
                other.transport.write(http(b""))

    instants = [n * MS for n in range(count)]
    async with serving(last_frees_all) as server, pool(server) as connections:
        log = at(*instants)
        await OpenLoop(connections, log).run()
    assert not any(one.fault for one in log)
    assert log[0].ended - log[0].intended >= (count - 1) * MS  # the first waited for the last
    assert max(one.sent for one in log) <= min(one.ended for one in log)


async def test_closed_loop_keeps_its_number_in_flight() -> None:
    most = 0
    held: list[Scripted] = []

    def in_pairs(connection: Scripted, request: bytes) -> None:
        """Answers when four wait: with fewer in flight it would never, with more `most` would tell."""
        nonlocal most
        held.append(connection)
        most = max(most, len(held))
        if len(held) == 4 or len(connection.server.requests) > 8:
            while held:
                held.pop().transport.write(http(b""))

    async with serving(in_pairs) as server, pool(server) as connections:
        run = ClosedLoop(connections, itertools.repeat(0), 4, 0.05)
        await run.run()
    assert most == 4
    assert len(run.log) >= 4
    assert all(one.ended and not one.fault for one in run.log)
    assert all(lag >= 0 for lag in run.lags)


async def test_closed_loop_without_a_server_ends() -> None:
    async with serving(lambda _, request: http(b"")) as server:
        pass
    async with pool(server) as connections:
        run = ClosedLoop(connections, itertools.repeat(0), 3, 60)
        await run.run()
    assert [fault.partition(":")[0] for fault in (one.fault for one in run.log)] == ["connect"] * 3
