"""Notices callers that hang up while they wait.

Racing every answer against `http.disconnect` costs a task and 7 us a call. Most calls are over long before their
caller could tire, so only those that have waited a while are watched, all found by one timer.
"""

from __future__ import annotations

import asyncio
from collections import deque

from app.api.http import Receive
from app.contract import Lease


class Waiting:
    """One call that waits for its answer."""

    __slots__ = ("due", "lease", "over", "receive", "task")

    def __init__(self, receive: Receive, lease: Lease, due: float) -> None:
        self.receive = receive
        self.lease = lease
        self.due = due
        self.over = False
        self.task: asyncio.Task[None] | None = None

    def end(self) -> None:
        """The call has its answer."""
        self.over = True
        if self.task is not None:
            self.task.cancel()

    async def watch(self) -> None:
        while True:
            message = await self.receive()
            if message["type"] == "http.disconnect":
                self.lease.cancel()
                return


class Watch:
    """Watches calls for hang-ups from `delay_s` seconds on. Entries leave the queue at that age at the latest."""

    def __init__(self, delay_s: float = 0.02) -> None:
        self._delay_s = delay_s
        self._young: deque[Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, receive: Receive, lease: Lease) -> Waiting:
        """Call `end` on what this returns, always."""
        loop = asyncio.get_running_loop()
        waiting = Waiting(receive, lease, loop.time() + self._delay_s)
        self._young.append(waiting)
        if self._timer is None:
            self._timer = loop.call_later(self._delay_s, self._grown)
        return waiting

    def _grown(self) -> None:
        loop = asyncio.get_running_loop()
        young = self._young
        until = loop.time() + 0.001  # loops round to milliseconds
        while young and (young[0].over or young[0].due <= until):
            waiting = young.popleft()
            if not waiting.over:
                task = loop.create_task(waiting.watch())
                waiting.task = task
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        self._timer = loop.call_at(young[0].due, self._grown) if young else None
