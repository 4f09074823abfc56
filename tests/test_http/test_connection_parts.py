"""What is done for all connections: idle ones close, refusals wait, TLS clients that do not answer are cut."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from connections import Clock

from app.contract import awaited
from app.http.connection.idle_connections import IdleConnections
from app.http.connection.refusals import FREE, RefusalQueue
from app.http.connection.uvicorn_fixes import PatchedProtocol


class Idle:
    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.busy = self.closed = False
        self.idle_since = 0.0
        self.left: tuple[int, ...] | None = None
        self.is_cut = False

    def waits(self) -> bool:
        return not self.busy

    def waited_too_long(self) -> None:
        assert not self.closed
        self.closed = True
        self.left = (0, 0)

    def unread(self) -> tuple[int, ...] | None:
        return self.left

    def cut(self) -> None:
        self.is_cut = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(waiting: IdleConnections, clock: Clock, count: int, before: int = 0) -> list[Idle]:
    connections = [Idle(clock) for _ in range(count)]
    for number, connection in enumerate(connections, before + 1):
        waiting.opened(connection, number)
    return connections


def test_the_oldest_makes_room_for_each_that_comes(clock: Clock) -> None:
    """But none that is being answered, nor one that was a moment ago."""
    waiting = IdleConnections(75, most=160)
    connections = opened(waiting, clock, 150)
    assert not any(connection.closed for connection in connections)
    clock.pass_s(2)
    connections[0].busy = True
    connections[1].idle_since = clock.now
    opened(waiting, clock, 3, before=150)
    assert [number for number, connection in enumerate(connections) if connection.closed] == [2, 3, 4]
    for connection in connections:
        connection.busy = True
    opened(waiting, clock, 1, before=153)
    assert sum(connection.closed for connection in connections) == 3


def test_a_lost_connection_leaves_no_timer(clock: Clock) -> None:
    waiting = IdleConnections(5, most=160)
    (connection,) = opened(waiting, clock, 1)
    waiting.lost(connection)
    assert clock.timers == []


def test_a_closed_connection_whose_last_answer_is_not_read_is_cut(clock: Clock) -> None:
    waiting = IdleConnections(5, most=160)
    (connection,) = opened(waiting, clock, 1)
    clock.pass_s(5)
    assert (connection.closed, connection.is_cut) == (True, False)
    clock.pass_s(10)
    assert connection.is_cut
    waiting.lost(connection)
    assert clock.timers == []


def waits(count: int) -> list[float]:
    """How long each of so many waited that were refused at once."""
    clock, left = Clock(), []
    turns = RefusalQueue(lambda: FREE + count)
    with patch("asyncio.get_running_loop", return_value=clock):
        for _ in range(count):
            turns.submit(SimpleNamespace(set_result=lambda _: left.append(clock.now)))
        clock.pass_s(10)
    assert (len(left), clock.timers, left) == (count, [], sorted(left))
    return left


@pytest.mark.parametrize(("count", "last_s"), [(1, 0.004), (64, 0.032), (1500, 0.752)])
def test_a_refusal_waits_longer_the_more_there_are(count: int, last_s: float) -> None:
    """And they leave one after another: refused together, they do not come back together."""
    left = waits(count)
    assert left[-1] == pytest.approx(last_s)
    assert max(map(left.count, set(left))) == min(8, count)


def test_clients_that_always_come_back_wait_a_second_at_most() -> None:
    """However many there are: 30,000 of them, each refused again as soon as it is refused."""
    clock = Clock()
    turns = RefusalQueue(lambda: 30_000)
    longest = 0.0

    def refuse(since: float) -> None:
        nonlocal longest
        longest = max(longest, clock.now - since)
        turns.submit(SimpleNamespace(set_result=lambda _, since=clock.now: refuse(since)))

    with patch("asyncio.get_running_loop", return_value=clock):
        for _ in range(30_000):
            turns.submit(SimpleNamespace(set_result=lambda _: refuse(0.0)))
        clock.pass_s(3)
    assert longest == pytest.approx(1.0, abs=0.01)


async def test_none_waits_while_few_connections_are_open() -> None:
    count = FREE
    turns = RefusalQueue(lambda: count)
    assert not turns.needed()
    count = FREE + 1
    waiting = awaited(turns)
    await asyncio.sleep(0)
    assert not waiting.done()
    count = 0
    assert turns.needed()  # nobody overtakes those who wait
    await waiting
    assert not turns.needed()


class Transport(asyncio.Transport):
    """A connection over `sock`."""

    def __init__(self, sock: socket.socket | None) -> None:
        super().__init__({"socket": sock})
        self.cut = False

    def is_closing(self) -> bool:
        return True

    def abort(self) -> None:
        self.cut = True


def test_what_was_written_is_read_first() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as theirs:
        ours, _ = listener.accept()
        with ours:
            ours.setblocking(False)
            sent = 0
            with contextlib.suppress(BlockingIOError):
                while True:
                    sent += ours.send(bytes(1 << 20))
            clock, transport = Clock(), Transport(ours)
            closing = PatchedProtocol.__new__(PatchedProtocol)
            closing.scheme, closing.loop, closing.transport, closing._tls_timer = "https", clock, transport, None
            closing._close_tls()
            clock.pass_s(3)
            assert not transport.cut
            while sent:
                sent -= len(theirs.recv(1 << 20))
            theirs.close()  # which acknowledges all of it
            clock.pass_s(1)
            assert (transport.cut, clock.timers) == (True, [])
