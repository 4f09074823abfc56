"""Plays a workload against a server over HTTP: one client for each task, V2 with binary tensors.

async with Clients(WorkloadPlan(url="localhost:8000", workload=read(path).mapped({"vgg19": "mlp"}))) as clients:
    alone_ms = [await clients.alone(number) for number in range(len(workload.tasks))]
    outcomes, lags = await clients.play(workload, seed, range(len(alone_ms)), alone_ms)
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import zip_longest
from typing import Literal

import numpy as np

from loadtest.generator.alarm import clock
from loadtest.generator.client import ConnectionPool, TimedRequest
from loadtest.generator.drive import LEAD_NS, Drive
from loadtest.generator.plan import BenchPlan, Unusable
from loadtest.generator.run import Session, endless_picks, without_collections
from loadtest.generator.stats import by_kind, fault_of

from .figures import Outcome
from .schedule import Launch, Players
from .workload import CLASSES, TIMED, Load, Task, Workload

#: How a server learns a task's class: not at all, by the header X-Class, or by the parameter `priority`, 1 for real
#: time and 2 for best effort.
SentAs = Literal["none", "header", "priority"]

ALONE_S = 0.5  # of each task alone, after as long again that is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """Whose requests, to which server, and how their classes are sent."""

    url: str
    workload: Workload
    classes: SentAs = "none"
    seed: int = 0

    def of(self, task: Task) -> BenchPlan:
        """The requests of one task."""
        header = (f"X-Class: {task.klass}",) if self.classes == "header" else ()
        return BenchPlan(
            url=self.url, model=task.model, seed=self.seed, payload="binary", rows=task.rows, headers=header,
            connections=len(self.workload.tasks),
            priority=1 + CLASSES.index(task.klass) if self.classes == "priority" else None,
        )  # fmt: skip


class WorkloadDrive(Drive):
    """The clients of a workload, who share one alarm. `bodies`: by task, the requests to pick.

    `requests`: by task. `lags`: how late requests with an instant were handed to the pool, in ns. `run` raises
    Unusable if the server has gone.
    """

    def __init__(self, pool: ConnectionPool, players: Players, bodies: Sequence[Iterator[int]]) -> None:
        super().__init__(pool, [])
        self.requests: list[list[TimedRequest]] = [[] for _ in bodies]
        self.lags = array("q")
        self._players = players
        self._bodies = bodies
        self._planned: list[tuple[int, int, Launch]] = []  # heap of (at, sequence, launch)
        self._sequence = 0

    def _begin(self) -> None:
        self.start_ns = clock() + LEAD_NS
        for launch in self._players.begin():
            self._plan(launch)
        if self._players.over:
            self._finish()

    def _plan(self, launch: Launch) -> None:
        self._sequence += 1
        heappush(self._planned, (launch.at, self._sequence, launch))
        if self._planned[0][2] is launch:
            self._alarm.set(self.start_ns + launch.at)

    def _ring(self) -> None:
        while self._planned and self._planned[0][0] <= clock() - self.start_ns:
            self._pool.offer(self._launch(heappop(self._planned)[2]))
        if self._planned:
            self._alarm.set(self.start_ns + self._planned[0][0])

    def _launch(self, launch: Launch) -> TimedRequest:
        """Note the launch; returns its request, which is to be sent."""
        now = clock()
        request = TimedRequest(now, next(self._bodies[launch.task]), launch.task)
        self.requests[launch.task].append(request)
        self._players.launched(launch, now - self.start_ns)
        if launch.due == launch.at and self._players.played[launch.task].task.load.kind in TIMED:
            self.lags.append(now - self.start_ns - launch.at)
        return request

    def _ended(self, request: TimedRequest) -> TimedRequest | None:
        """Returns a request that follows at once, which takes the same connection."""
        if self._done.done():
            return None
        if request.fault.startswith("connect"):  # those after it would fail at once as well, a closed loop for ever
            self._done.set_exception(Unusable(f"url: the server has gone: {request.fault}"))
            return None
        following: TimedRequest | None = None
        now = request.ended - self.start_ns
        for launch in self._players.ended(request.task, now, not request.fault):
            if following is None and launch.at <= now:
                following = self._launch(launch)
            else:
                self._plan(launch)
        if self._players.over:
            self._finish()
        return following


class Clients(Session):
    """The requests of all tasks, and the connections to the server. An async context manager."""

    def __init__(self, plan: WorkloadPlan) -> None:
        super().__init__(*map(plan.of, plan.workload.tasks))
        self._workload = plan.workload
        self._seed = plan.seed

    async def alone(self, number: int) -> float:
        """Mean latency of a task alone in ms. Raises Unusable if an answer is wrong."""
        task = self._workload.tasks[number]
        lone = Workload("alone", ALONE_S, (replace(task, load=Load("continuous")),))
        warm, found = [(await self.play(lone, self._seed, [number]))[0] for _ in range(2)]
        for outcome in (*warm, *found):
            if outcome.examples:
                text = next(iter(outcome.examples.values()))
                raise Unusable(f"model: expected a right answer of {task.model!r}, got {text}")
        return float(found[0].latency_ns.mean()) / 1e6

    async def play(
        self, workload: Workload, seed: int, numbers: Sequence[int], alone_ms: Sequence[float] = ()
    ) -> tuple[tuple[Outcome, ...], array[int]]:
        """Run tasks of a workload, which have the prepared requests of these numbers. Returns lags too."""
        tasks = workload.tasks
        alone_ns = {task.id: round(ms * 1e6) for task, ms in zip(tasks, alone_ms, strict=False)}
        players = Players(workload, seed, alone_ns)
        picks = [endless_picks(np.random.default_rng([seed, 3, number]), self._requests[number]) for number in numbers]
        drive = WorkloadDrive(self._pool, players, picks)
        with without_collections():
            await drive.run()
        wrong = self._answers.judge()
        outcomes = []
        for played, requests, mean_ms in zip_longest(players.played, drive.requests, alone_ms):
            faults = [fault_of(request, wrong) for request in requests]
            played.right = [not fault for fault in faults]
            errors, examples = by_kind(faults)
            outcomes.append(Outcome(played, mean_ms, errors, examples))
        return tuple(outcomes), drive.lags
