"""Room for new connections, on a clock of the test's. When idle ones close, test_fast_path.py shows."""

from __future__ import annotations

from typing import Any

import pytest
from connections import Clock

from app.http.connection.idle_connections import IdleConnections


class Connection:
    def __init__(self, loop: Any) -> None:
        self.loop = loop
        self.busy = self.closed = False

    def waits(self) -> bool:
        return not self.busy

    def waited_too_long(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def opened(waiting: IdleConnections, clock: Clock, count: int, before: int = 0) -> list[Connection]:
    connections = [Connection(clock) for _ in range(count)]
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
    waiting.begin(connections[1])
    opened(waiting, clock, 3, before=150)
    assert [number for number, connection in enumerate(connections) if connection.closed] == [2, 3, 4]
    for connection in connections:
        connection.busy = True
    opened(waiting, clock, 1, before=153)
    assert sum(connection.closed for connection in connections) == 3


def test_a_lost_connection_leaves_no_timer(clock: Clock) -> None:
    waiting = IdleConnections(5)
    (connection,) = opened(waiting, clock, 1)
    waiting.lost(connection)
    assert clock.timers == []
