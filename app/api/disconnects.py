"""Notices callers that hang up while they wait.

Racing every answer against `http.disconnect` costs a task and 7 us a call. Most calls are over long before their
caller could tire, so only those that have waited for one to two periods are watched, all found by one timer.
"""

from __future__ import annotations

import asyncio

from app.api.http import Receive
from app.contract import Lease


class Watch:
    """Watches calls for hang-ups once they are between one and two `period_s` old."""

    def __init__(self, period_s: float = 0.02) -> None:
        self._period_s = period_s
        self._young: dict[Lease, Receive] = {}  # begun since the timer last fired
        self._grown: dict[Lease, Receive] = {}  # begun in the period before
        self._tasks: dict[Lease, asyncio.Task[None]] = {}  # waited longer
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, receive: Receive, lease: Lease) -> None:
        """The call has been submitted. Call `end` when it has its answer, always."""
        self._young[lease] = receive
        if self._timer is None:
            self._timer = loop.call_later(self._period_s, self._turn, loop)

    def end(self, lease: Lease) -> None:
        if self._young.pop(lease, None) is None and self._grown.pop(lease, None) is None:
            task = self._tasks.pop(lease, None)
            if task is not None:
                task.cancel()

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        for lease, receive in self._grown.items():
            self._tasks[lease] = loop.create_task(_watch(receive, lease))
        self._grown, self._young = self._young, {}
        self._timer = loop.call_later(self._period_s, self._turn, loop) if self._grown else None


async def _watch(receive: Receive, lease: Lease) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            lease.cancel()
            return
