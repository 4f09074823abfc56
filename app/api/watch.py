"""Notices callers that hang up while they wait.

Racing every answer against `http.disconnect` costs a task and 7 us a call. Most calls are over long before their
caller could tire, so only those that have waited a while are watched, all found by one timer.
"""

from __future__ import annotations

import asyncio
from collections import deque

from app.api.http import Receive
from app.contract import Lease


class Watch:
    """Watches calls for hang-ups from `delay_s` seconds on. Entries leave the queue at that age at the latest."""

    def __init__(self, delay_s: float = 0.02) -> None:
        self._delay_s = delay_s
        self._young: deque[tuple[float, Receive, Lease]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: dict[Lease, asyncio.Task[None]] = {}

    def begin(self, loop: asyncio.AbstractEventLoop, receive: Receive, lease: Lease) -> None:
        """The call has been submitted. Call `end` when it has its answer, always."""
        self._young.append((loop.time() + self._delay_s, receive, lease))
        if self._timer is None:
            self._timer = loop.call_later(self._delay_s, self._grown, loop)

    def end(self, lease: Lease) -> None:
        if self._tasks:
            task = self._tasks.pop(lease, None)
            if task is not None:
                task.cancel()

    def _grown(self, loop: asyncio.AbstractEventLoop) -> None:
        young = self._young
        until = loop.time() + 0.001  # loops round to milliseconds
        while young:
            due, receive, lease = young[0]
            if not lease.answered:
                if due > until:
                    break
                self._tasks[lease] = loop.create_task(_watch(receive, lease))
            young.popleft()
        self._timer = loop.call_at(young[0][0], self._grown, loop) if young else None


async def _watch(receive: Receive, lease: Lease) -> None:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            lease.cancel()
            return
