"""Runs a workload against a server over HTTP: one client for each task, V2 with binary tensors.

    result = in_loop(play(WorkloadPlan(url="localhost:8000", workload=read(path).mapped({"vgg19": "mlp"}))))
    print(report.table(result.outcomes, result.plan.workload.time_s))

First each task runs alone for a moment, one request after another: so models are warm, connections open, and it is
known what a task takes alone. Then the workload runs, at first without being counted.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from . import workload_report as report
from .answers import UNCHECKED, Answers
from .client import Pool
from .drive import Progress
from .http import Response
from .payload import Body, prepare
from .plan import Plan
from .run import LAG_P99_MS, LAG_SHARE, Lagging, Unusable, described, endless_picks, without_collections
from .stats import percentile
from .workload import CLASSES, Load, Task, Workload
from .workload_drive import WorkloadDrive
from .workload_report import Outcome
from .workload_schedule import Players

Told = Literal["none", "header", "priority"]
TOLD: tuple[Told, ...] = get_args(Told)

ALONE_S = 0.5  # of each task alone, after as long again that is not counted


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPlan:
    """One run. Raises ValueError, `field: expected ..., got ...`.

    `told` is how the server hears of a task's class: not at all, by the header X-Class, or by the parameter `priority`,
    1 for real time and 2 for best effort.
    """

    url: str
    workload: Workload
    told: Told = "none"
    warmup_s: float = 2.0
    seed: int = 0
    lengths: str = "16"
    timeout_s: float = 10.0
    headers: tuple[str, ...] = ()
    check: str = "values"
    max_lag_ms: float | None = None

    def __post_init__(self) -> None:
        if self.told not in TOLD:
            raise ValueError(f"classes: expected one of {', '.join(TOLD)}, got {self.told!r}")
        for task in self.workload.tasks:
            self.of(task)

    @property
    def seconds(self) -> float:
        """About how long all of it takes."""
        return 2 * ALONE_S * len(self.workload.tasks) + self.warmup_s + self.workload.time_s

    def of(self, task: Task) -> Plan:
        """The requests of one task."""
        header = (f"X-Class: {task.klass}",) if self.told == "header" else ()
        return Plan(
            url=self.url, model=task.model, warmup_s=self.warmup_s, seed=self.seed, payload="binary", rows=task.rows,
            lengths=self.lengths, timeout_s=self.timeout_s, headers=(*self.headers, *header), check=self.check,
            priority=1 + CLASSES.index(task.klass) if self.told == "priority" else None, max_lag_ms=self.max_lag_ms,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WorkloadResult:
    """`lag_ns`: how late this process was with each request that had an instant."""

    plan: WorkloadPlan
    outcomes: tuple[Outcome, ...]
    lag_ns: array[int]

    @property
    def completed(self) -> int:
        """Right answers."""
        return sum(len(one.latency_ns) for one in self.outcomes)

    def lag_ms(self, share: float) -> float:
        """A percentile of the lag, 0 where no request had an instant."""
        return percentile(np.array(self.lag_ns, np.int64), share) or 0.0

    def check_lag(self) -> None:
        """Raises Lagging if requests went out so late that latencies, and which requests met, are this process's own.

        What counts is the 99th percentile, against that of the latencies of real-time requests.
        """
        time_s = self.plan.workload.time_s
        classes = report.by_class(self.outcomes, time_s)
        p99_ms = classes.get("realtime", classes["all"])["p99_ms"] or 0.0
        limit = max(LAG_P99_MS, self.plan.max_lag_ms or 0.0, LAG_SHARE * p99_ms)
        if self.lag_ms(0.99) > limit:
            raise Lagging(
                f"lag: the load generator could not keep up: 1 % of its requests were more than "
                f"{self.lag_ms(0.99):.3f} ms late, limit {limit:.3f} ms. Scale the rates down, or give it a core or a "
                "machine of its own; --max-lag-ms accepts more"
            )

    def as_json(self) -> dict[str, Any]:
        plan, time_s = self.plan, self.plan.workload.time_s
        return {
            "workload": plan.workload.name, "url": plan.url, "classes_told": plan.told, "time_s": time_s,
            "warmup_s": plan.warmup_s, "seed": plan.seed, "lag_p50_ms": self.lag_ms(0.5),
            "lag_p99_ms": self.lag_ms(0.99), "tasks": report.by_task(self.outcomes, time_s),
            "classes": report.by_class(self.outcomes, time_s),
        }  # fmt: skip

    def table(self) -> str:
        plan, workload = self.plan, self.plan.workload
        told = {"none": "not told of classes", "header": "told by X-Class", "priority": "told by priority 1 and 2"}
        return "\n".join(
            [
                f"{workload.name} at {plan.url}: {workload.time_s:g} s after a warm-up of {plan.warmup_s:g} s; the "
                f"server is {told[plan.told]}",
                "",
                report.table(self.outcomes, workload.time_s),
                "",
                f"latency runs from the launch; generator's lag {self.lag_ms(0.5):.3f} ms, 99 % "
                f"{self.lag_ms(0.99):.3f} ms",
            ]
        )


class _Requests:
    """The prepared requests of tasks of one model and class. `first`: the place of the first among all."""

    def __init__(self, first: int, bodies: Sequence[Body], answers: Answers) -> None:
        self.first = first
        self.bodies = bodies
        self.answers = answers


class Clients:
    """The requests of all tasks, and the connections to the server. An async context manager."""

    def __init__(self, plan: WorkloadPlan, progress: Progress | None) -> None:
        self._plan = plan
        self._progress = progress
        self._stack = AsyncExitStack()
        self._of: list[_Requests] = []  # by task
        self._by_pick: list[_Requests] = []
        self._pool: Pool

    async def __aenter__(self) -> Clients:
        async with self._stack as stack:
            known: dict[Plan, _Requests] = {}
            for task in self._plan.workload.tasks:
                plan = self._plan.of(task)
                if plan not in known:
                    model = await described(plan)
                    bodies = prepare(model, plan)
                    answers = Answers(model, bodies, values=plan.check == "values")
                    known[plan] = _Requests(len(self._by_pick), bodies, answers)
                    self._by_pick += [known[plan]] * len(bodies)
                self._of.append(known[plan])
            payloads = [body.request for one in known.values() for body in one.bodies]
            limit = len(self._plan.workload.tasks)
            target = self._plan.of(self._plan.workload.tasks[0]).target
            pool = Pool(target, payloads, self._note, limit=limit, timeout_s=self._plan.timeout_s)
            self._pool = await stack.enter_async_context(pool)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.__aexit__(*exc)

    def _note(self, pick: int, response: Response) -> int:
        requests = self._by_pick[pick]
        return requests.answers.note(pick - requests.first, response)

    async def alone(self, number: int) -> float:
        """Mean latency of a task alone in ms. Raises Unusable if an answer is wrong."""
        task = self._plan.workload.tasks[number]
        lone = Workload("alone", ALONE_S, (replace(task, load=Load("continuous")),))
        warm, found = [(await self.play(lone, self._plan.seed, [number]))[0] for _ in range(2)]
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
        drive = WorkloadDrive(self._pool, players, [self._picks(seed, number) for number in numbers], self._progress)
        with without_collections():
            await drive.run()
        faults = self._faults(drive)
        outcomes = []
        for at, played in enumerate(players.played):
            own = {request: fault for request, fault in faults.items() if drive.launches[request].task == at}
            played.right = [request not in own for request in drive.requests[at]]
            errors: Counter[str] = Counter(fault.partition(":")[0] for fault in own.values())
            examples = {fault.partition(":")[0]: fault for fault in reversed(own.values())}
            outcomes.append(Outcome(played, alone_ms[at] if alone_ms else None, errors, examples))
        return tuple(outcomes), drive.lags

    def _picks(self, seed: int, number: int) -> Iterator[int]:
        requests = self._of[number]
        for pick in endless_picks(np.random.default_rng([seed, 3, number]), len(requests.bodies)):
            yield requests.first + pick

    def _faults(self, drive: WorkloadDrive) -> dict[int, str]:
        """By request, why there is no right answer."""
        log = drive.log
        wrong = {id(one): one.answers.judge() for one in self._of}
        faults = dict(log.faults)
        for request, (pick, answer) in enumerate(zip(log.picks, log.answers, strict=True)):
            if request not in faults and answer != UNCHECKED and (fault := wrong[id(self._by_pick[pick])][answer]):
                faults[request] = fault
        return dict(sorted(faults.items()))


async def play(plan: WorkloadPlan, progress: Progress | None = None) -> WorkloadResult:
    """Each task alone, the warm-up, and the run. Raises Unusable, Lagging, and ValueError for what fits no model.

    `progress` is called with the seconds that pass, in all about `plan.seconds`.
    """
    workload = plan.workload
    numbers = range(len(workload.tasks))
    async with Clients(plan, progress) as clients:
        alone_ms = [await clients.alone(number) for number in numbers]
        if plan.warmup_s:
            await clients.play(replace(workload, time_s=plan.warmup_s), plan.seed + 1, numbers, alone_ms)
        outcomes, lags = await clients.play(workload, plan.seed, numbers, alone_ms)
    result = WorkloadResult(plan, outcomes, lags)
    result.check_lag()
    return result
