"""Closes connections that wait too long for a request, or whose clients do not read their answers.

When there are many, the longest waiting ones are closed earlier.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

_AT_LEAST_S = 1.0  # a connection answered more recently may have its next request on the way
_NEAR = 16  # near the limit: less than one in so many of the allowed connections is left


class IdleConnection(Protocol):
    """What IdleConnections uses of a connection."""

    loop: asyncio.AbstractEventLoop
    idle_since: float  # by the loop's clock: the accept, then the end of the last answer

    def waits(self) -> bool:
        """Whether no request is being read or answered."""

    def waited_too_long(self) -> None:
        """Close the connection. No complete head of a request has arrived."""

    def unread(self) -> tuple[int, ...] | None:
        """What the client has still to read, if the server waits for that: it changes with each byte that is read."""

    def cut(self) -> None:
        """Close the connection, whatever the client has still to read."""


class IdleConnections:
    """Of one server.

    `seconds`: most time from the accept or the last answer to the end of the next head, and in which a client reads
    nothing. `most`: connections that may be open; near that limit each new connection closes the one that has waited
    longest.

    Each connection has a timer. Requests and answers do not touch it: it looks when its time has come, and is set again
    for the rest.
    """

    def __init__(self, seconds: float, most: int) -> None:
        self._seconds = seconds
        self._near = most - most // _NEAR
        self._timers: dict[IdleConnection, asyncio.TimerHandle] = {}
        #: Near the limit: those that waited at `_looked`, the longest waiting first, and since when.
        self._longest: deque[tuple[float, IdleConnection]] = deque()
        self._looked = float("-inf")

    def opened(self, connection: IdleConnection, count: int) -> None:
        """A connection was accepted; `count` are open, including it."""
        now = connection.idle_since = connection.loop.time()
        if count > self._near:
            self._make_room(now)
        else:
            self._longest.clear()
        self._look_after(self._seconds, connection)

    def lost(self, connection: IdleConnection) -> None:
        """The connection is closed."""
        timer = self._timers.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def _look_after(self, seconds: float, connection: IdleConnection, unread: tuple[int, ...] | None = None) -> None:
        self._timers[connection] = connection.loop.call_later(seconds, self._look, connection, unread)

    def _look(self, connection: IdleConnection, unread_before: tuple[int, ...] | None) -> None:
        if (unread := connection.unread()) is not None:
            if unread == unread_before:
                connection.cut()
            else:
                self._look_after(self._seconds, connection, unread)
            return
        waited = connection.loop.time() - connection.idle_since if connection.waits() else 0.0
        if waited < self._seconds:
            self._look_after(self._seconds - waited, connection)
        else:
            self._close(connection)

    def _close(self, connection: IdleConnection) -> None:
        self.lost(connection)
        self._look_after(self._seconds, connection)  # the client may not read its last answer
        connection.waited_too_long()

    def _make_room(self, now: float) -> None:
        # Whoever is not among these has been answered since, so more often would find nobody else.
        if not self._longest and self._looked + _AT_LEAST_S <= now:
            self._looked = now
            waiting = [(one.idle_since, one) for one in self._timers if one.waits()]
            self._longest.extend(sorted(waiting, key=lambda entry: entry[0]))
        while self._longest and self._longest[0][0] + _AT_LEAST_S <= now:
            since, connection = self._longest.popleft()
            if connection in self._timers and connection.idle_since == since and connection.waits():
                self._close(connection)
                return
