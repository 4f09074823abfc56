"""Notices clients that disconnect while they wait for an answer.

To race every answer against `http.disconnect` would cost a task and 7 us a call. Most calls end long before a client
gives up, so only those that have waited for one to two periods get a task, and one timer finds them all.
"""

from __future__ import annotations

import asyncio

from app.api.http import Receive
from app.contract import Lease


class DisconnectWatcher:
    """Cancels calls whose client has disconnected, once they are one to two `period_s` old."""

    def __init__(self, period_s: float = 0.02) -> None:
        self._period_s = period_s
        self._recent: dict[Lease, Receive] = {}  # begun since the timer last fired
        self._older: dict[Lease, Receive] = {}  # begun in the period before
        self._tasks: dict[Lease, asyncio.Task[None]] = {}  # of calls that have waited longer
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, receive: Receive, lease: Lease) -> None:
        """The call has been submitted. Whoever calls this must call `end` when the call has its answer."""
        self._recent[lease] = receive
        if self._timer is None:
            self._timer = loop.call_later(self._period_s, self._next_period, loop)

    def end(self, lease: Lease) -> None:
        if self._recent.pop(lease, None) is None and self._older.pop(lease, None) is None:
            task = self._tasks.pop(lease, None)
            if task is not None:
                task.cancel()

    def _next_period(self, loop: asyncio.AbstractEventLoop) -> None:
        for lease, receive in self._older.items():
            self._tasks[lease] = loop.create_task(_cancel_on_disconnect(receive, lease))
        self._older, self._recent = self._recent, {}
        self._timer = loop.call_later(self._period_s, self._next_period, loop) if self._older else None


async def _cancel_on_disconnect(receive: Receive, lease: Lease) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            lease.cancel()
            return
