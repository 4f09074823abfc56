"""Closes connections that wait too long for a request, and the longest waiting ones when there are many."""

from __future__ import annotations

import asyncio
import sys
from typing import Protocol

_AT_LEAST_S = 1.0  # a connection answered more recently may have its next request on the way
_NEAR = 16  # near the limit: less than one in so many of the allowed connections is left


class IdleConnection(Protocol):
    """The methods of a connection that IdleConnections uses."""

    loop: asyncio.AbstractEventLoop

    def waits(self) -> bool:
        """Whether no request is being read or answered."""
        ...

    def waited_too_long(self) -> None:
        """Close the connection. No complete head of a request has arrived."""
        ...


class IdleConnections:
    """One timer for all connections of a server.

    `seconds`: most time from the accept or the last answer to the end of the next head. `most`: connections that may be
    open; near that limit each new connection closes the one that has waited longest.

    Connections are kept in the order in which they began to wait: each answer moves its connection to the end. An
    arriving request changes nothing here: a busy connection is skipped when its time is up.
    """

    def __init__(self, seconds: float, most: int = sys.maxsize) -> None:
        self._seconds = seconds
        self._near = most - most // _NEAR
        self._since: dict[IdleConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def opened(self, connection: IdleConnection, count: int) -> None:
        """A connection was accepted; `count` are open, including it."""
        if count > self._near:
            self._make_room(connection.loop.time())
        self.begin(connection)

    def begin(self, connection: IdleConnection) -> None:
        """All requests read so far on this connection are answered: it waits from now on."""
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
        """The connection that has waited longest, and since when."""
        while self._since:
            connection, since = next(iter(self._since.items()))
            if connection.waits():
                return connection, since
            del self._since[connection]  # busy: its answer will call `begin`
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
