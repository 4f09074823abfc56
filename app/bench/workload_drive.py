"""Sends the requests of a workload: players over a pool of connections, in real time.

The rules are those of `workload_schedule`; here is only what carries them out. All tasks share one alarm.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush

from . import alarm
from .alarm import clock
from .client import NO_REQUEST, Log, Pool
from .drive import Progress, Teller
from .run import Unusable
from .workload import TIMED
from .workload_schedule import Launch, Players

_LEAD_NS = 5_000_000  # from the start of a run to its time 0, so that the first request is not late


class WorkloadDrive:
    """One run. `requests`: by task, the numbers of its requests in `log`; `launches`: by number.

    `lags`: how late requests with an instant were handed to the pool, in ns.
    """

    def __init__(
        self, pool: Pool, players: Players, bodies: Sequence[Iterator[int]], progress: Progress | None
    ) -> None:
        self.log = Log((), ())
        self.launches: list[Launch] = []
        self.requests: list[list[int]] = [[] for _ in bodies]
        self.lags = array("q")
        self._pool = pool
        self._players = players
        self._bodies = bodies
        self._planned: list[tuple[int, int, Launch]] = []  # heap of (at, sequence, launch)
        self._sequence = 0
        self._start_ns = 0
        self._progress = Teller(progress)
        self._alarm = alarm.make(self._ring)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        pool.begin(self.log, self._ended)

    async def run(self) -> None:
        """Raises Unusable if the server has gone."""
        self._start_ns = clock() + _LEAD_NS
        self._progress.begin()
        try:
            for launch in self._players.begin():
                self._plan(launch)
            self._finish_if_over()
            await self._done
        finally:
            self.log.trim()
            self._alarm.close()
            self._progress.end()

    def _plan(self, launch: Launch) -> None:
        self._sequence += 1
        heappush(self._planned, (launch.at, self._sequence, launch))
        if self._planned[0][2] is launch:
            self._alarm.set(self._start_ns + launch.at)

    def _ring(self) -> None:
        while self._planned and self._planned[0][0] <= clock() - self._start_ns:
            self._pool.offer(self._launch(heappop(self._planned)[2]))
        if self._planned:
            self._alarm.set(self._start_ns + self._planned[0][0])

    def _launch(self, launch: Launch) -> int:
        """Note the launch; returns its request, which is to be sent."""
        now = clock()
        request = self.log.add(now, next(self._bodies[launch.task]))
        self.launches.append(launch)
        self.requests[launch.task].append(request)
        self._players.launched(launch, now - self._start_ns)
        if launch.due == launch.at and self._players.played[launch.task].task.load.kind in TIMED:
            self.lags.append(now - self._start_ns - launch.at)
        return request

    def _ended(self, request: int, fault: str) -> int:
        """What the pool calls. A request that follows at once takes the same connection."""
        if fault.startswith("connect"):  # those after it would fail at once as well, a closed loop for ever
            if not self._done.done():
                self._done.set_exception(Unusable(f"url: the server has gone: {fault}"))
            return NO_REQUEST
        if self._done.done():
            return NO_REQUEST
        following = NO_REQUEST
        now = self.log.ended[request] - self._start_ns
        for launch in self._players.ended(self.launches[request].task, now, not fault):
            if following == NO_REQUEST and launch.at <= now:
                following = self._launch(launch)
            else:
                self._plan(launch)
        self._finish_if_over()
        return following

    def _finish_if_over(self) -> None:
        if self._players.over and not self._done.done():
            self._done.set_result(None)
