"""Connections that wait for a request: those that wait too long are closed, and the oldest where there are many."""

from __future__ import annotations

import asyncio
import sys
from typing import Protocol

_AT_LEAST_S = 1.0  # a connection that was answered less long ago may have its next request on the way
_NEAR = 16  # room is made while less than this part of the connections that may be open is left


class IdleConnection(Protocol):
    """What is needed of a connection."""

    loop: asyncio.AbstractEventLoop

    def waits(self) -> bool:
        """Whether no request is being answered, nor the body of one read."""
        ...

    def waited_too_long(self) -> None:
        """Close: the head of a request is not there yet."""
        ...


class IdleConnections:
    """One timer for all connections of a server. `seconds`: from the accept, or the last answer, to the end of a head.

    The connections are in the order in which they began to wait, since each answer moves its connection to the end. A
    request that arrives costs nothing here: a connection that is busy is skipped when its time is up. `most`: how many
    connections may be open; near that limit each new one closes the one that has waited longest.
    """

    def __init__(self, seconds: float, most: int = sys.maxsize) -> None:
        self._seconds = seconds
        self._near = most - most // _NEAR
        self._since: dict[IdleConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, connection: IdleConnection, count: int) -> None:
        """A connection was accepted; `count` are open with it."""
        if count > self._near:
            self._make_room(connection.loop.time())
        self.begin(connection)

    def begin(self, connection: IdleConnection) -> None:
        """All requests read so far are answered."""
        self._since.pop(connection, None)
        self._since[connection] = connection.loop.time()
        if self._timer is None:
            self._timer = connection.loop.call_later(self._seconds, self._close_late, connection.loop)

    def lost(self, connection: IdleConnection) -> None:
        """The connection is closed."""
        self._since.pop(connection, None)
        if not self._since and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _oldest(self) -> tuple[IdleConnection, float] | None:
        """Who has waited longest, and since when."""
        while self._since:
            connection, since = next(iter(self._since.items()))
            if connection.waits():
                return connection, since
            del self._since[connection]  # its answer brings it back
        return None

    def _close_late(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        while (oldest := self._oldest()) is not None:
            connection, since = oldest
            if since + self._seconds > now:
                self._timer = loop.call_later(since + self._seconds - now, self._close_late, loop)
                return
            del self._since[connection]
            connection.waited_too_long()

    def _make_room(self, now: float) -> None:
        oldest = self._oldest()
        if oldest is not None and oldest[1] + _AT_LEAST_S <= now:
            del self._since[oldest[0]]
            oldest[0].waited_too_long()
