"""Measures a model of a running server: `measure(plan)` from Python, `starling bench` from a shell.

    result = run(BenchPlan(url="localhost:8000", model="mlp", rate=200, repeats=5))
    result.figures["mean_ms"], result.repeats[0].latency_ns

The measuring process should do nothing else; run the server in another one.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np

from planner.commands.event_loop import in_loop

from .client import ConnectionPool, TimedRequest
from .drive import ClosedLoop, OpenLoop
from .http import Response
from .payload import Body, ModelMetadata, header_lines, prepare
from .plan import BenchPlan, Unusable
from .seen_answers import SeenAnswers
from .stats import Repeat, collect, percentile, summary

__all__ = ["BenchPlan", "Interrupted", "Lagging", "Result", "Session", "Unusable", "in_loop", "measure", "run"]

#: The share of the median latency and of the 99th percentile that may be this process's own lag; the confidence
#: interval of a few repeats is hardly narrower. The minima are the usual wait for a core on a busy machine: medians of
#: 0.02 to 0.13 ms were measured beside a busy server on two cores.
LAG_SHARE = 0.1
LAG_P50_MS = 0.2
LAG_P99_MS = 1.0

_SETTLE_S = 0.5

T = TypeVar("T")


class Lagging(Exception):
    """This process was too late, so the figures are not the server's. `result`: the measurement nevertheless."""

    status = 3  # of the command

    def __init__(self, message: str, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class Interrupted(Exception):
    """Ctrl-C came before the last run was complete. `result`: of those that were."""

    status = 130  # of the command, as shells have it for Ctrl-C

    def __init__(self, result: Result) -> None:
        super().__init__(f"interrupted: {len(result.repeats)} of {result.plan.repeats} runs are complete")
        self.result = result


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a measurement. `connections`: the most that were open at the same time."""

    plan: BenchPlan
    repeats: tuple[Repeat, ...]
    connections: int

    @property
    def requests(self) -> int:
        return sum(len(repeat.intended_ns) for repeat in self.repeats)

    @property
    def completed(self) -> int:
        """Right answers."""
        return sum(len(repeat.completed) for repeat in self.repeats)

    @property
    def unchecked(self) -> int:
        return sum(repeat.unchecked for repeat in self.repeats)

    @property
    def status(self) -> Counter[int]:
        return sum((repeat.status for repeat in self.repeats), Counter())

    @property
    def errors(self) -> Counter[str]:
        """Counts by kind; errors and `completed` add up to `requests`."""
        return sum((repeat.errors for repeat in self.repeats), Counter())

    @property
    def examples(self) -> dict[str, str]:
        """The full text of the first error of each kind."""
        return {kind: text for repeat in reversed(self.repeats) for kind, text in repeat.examples.items()}

    @property
    def figures(self) -> dict[str, float | None]:
        """Means over the repeats, with `_ci95`: see stats.FIGURES."""
        return summary(self.repeats, self.plan.deadline_ms)

    def check_lag(self) -> None:
        """Raises Lagging if the lag is too large a share of the latency, over all repeats together."""
        done = np.concatenate([repeat.completed for repeat in self.repeats])
        late = np.concatenate([repeat.lag_ns for repeat in self.repeats])
        for name, share, floor in (("median", 0.5, LAG_P50_MS), ("99th percentile", 0.99, LAG_P99_MS)):
            figure = percentile(done, share) or 0.0
            if self.plan.concurrency is None and len(done):
                own = figure - (percentile(np.concatenate([one.unlagged for one in self.repeats]), share) or 0.0)
            else:  # a closed loop's checks belong to no request: assume that the lag adds to each latency
                own = percentile(late, share) or 0.0
            limit = max(floor, self.plan.max_lag_ms or 0.0, LAG_SHARE * figure)
            if own > limit:
                raise Lagging(
                    f"lag: the load generator could not keep up: {own:.3f} ms of the latency's {name} are its own, "
                    f"limit {limit:.3f} ms. Lower the rate, send binary or smaller requests, or give it a core or a "
                    "machine of its own; --max-lag-ms accepts more",
                    self,
                )


class Session:
    """Prepared requests of one or several plans, and the connections to their server. An async context manager.

    Plans differ in model, rows and headers. Entering raises Unusable if there is no such server or model, or if it
    refuses the prepared requests.
    """

    def __init__(self, *plans: BenchPlan) -> None:
        self.plan = plans[0]
        self._plans = plans
        self._stack = AsyncExitStack()
        self._requests: list[range] = []  # by plan: the numbers of its requests
        self._answers: SeenAnswers
        self._pool: ConnectionPool

    async def __aenter__(self) -> Self:
        plan = self.plan
        async with self._stack as stack:  # closed here if anything raises
            bodies: list[Body] = []
            known: dict[BenchPlan, range] = {}
            for one in self._plans:
                if one not in known:
                    begin = len(bodies)
                    bodies += prepare(await described(one), one)
                    known[one] = range(begin, len(bodies))
                self._requests.append(known[one])
            self._answers = SeenAnswers(bodies, values=plan.check == "values")
            requests = [body.request for body in bodies]
            pool = ConnectionPool(
                plan.target, requests, self._answers.note, limit=plan.connections, timeout_s=plan.timeout_s
            )
            self._pool = await stack.enter_async_context(pool)
            for number in range(len(self._plans)):
                await self.lone(number)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stack.__aexit__(*exc)

    async def lone(self, number: int = 0) -> float:
        """Latency of a plan's longest request alone, in seconds. Raises Unusable if the answer is wrong."""
        alone = await _alone(self._pool, self._requests[number][0])
        repeat = collect(alone.log, alone.start_ns, 0, 0, self._answers.judge(), ())
        if repeat.examples:
            raise Unusable(
                f"model: expected a right answer of {self._plans[number].model!r}, "
                f"got {next(iter(repeat.examples.values()))}"
            )
        return float(repeat.latency_ns[0]) / 1e9

    async def warm(self) -> None:
        """Run the plan's load without counting it, or one request after another if the plan has no load."""
        plan = self.plan
        if plan.warmup_s:
            if plan.rate is None and not plan.traced:
                plan = replace(plan, concurrency=plan.concurrency or 1, arrivals="poisson")
            await self.once(plan, plan.seed + plan.repeats, plan.warmup_s)

    async def settle(self) -> None:
        """Wait until the server is idle after too much load, by sending one request after another for a moment."""
        await self.once(replace(self.plan, rate=None, concurrency=1, arrivals="poisson"), 0, _SETTLE_S)

    async def once(self, plan: BenchPlan, seed: int, duration_s: float) -> Repeat:
        """Do one run. `plan` may differ from the session's in rate, concurrency and arrivals."""
        choose = np.random.default_rng([seed, 3])
        drive: OpenLoop | ClosedLoop
        if plan.concurrency is not None:
            drive = ClosedLoop(self._pool, endless_picks(choose, self._requests[0]), plan.concurrency, duration_s)
        else:
            instants = plan.instants(plan.rate, seed, duration_s)
            if not len(instants):
                raise ValueError(
                    f"duration_s: no request falls into {duration_s:g} s; give a higher rate or --duration"
                )
            picks = choose.integers(0, len(self._requests[0]), len(instants))
            drive = OpenLoop(self._pool, list(map(TimedRequest, instants.tolist(), picks.tolist())))
        with without_collections():
            await drive.run()
        lags = drive.lags if isinstance(drive, ClosedLoop) else ()
        return collect(drive.log, drive.start_ns, duration_s, seed, self._answers.judge(), lags)

    async def repeats(self, plan: BenchPlan) -> Result:
        """Do all runs of `plan` without a warm-up. Raises Lagging; Interrupted if cancelled after the first."""
        found: list[Repeat] = []
        try:
            while len(found) < plan.repeats:
                found.append(await self.once(plan, plan.seed + len(found), plan.duration_s))
        except asyncio.CancelledError:
            if not found:
                raise
            raise Interrupted(Result(plan, tuple(found), self._pool.most)) from None
        result = Result(plan, tuple(found), self._pool.most)
        result.check_lag()
        return result


async def measure(plan: BenchPlan) -> Result:
    """Warm up, then `plan.repeats` runs. Raises Unusable, Lagging, and ValueError for what does not fit the model."""
    if plan.rate is None and plan.concurrency is None and not plan.traced:
        raise ValueError("rate: expected --rate, --concurrency or --find-peak")
    async with Session(plan) as session:
        await session.warm()
        return await session.repeats(plan)


def run(plan: BenchPlan) -> Result:
    """`measure` in a new event loop."""
    return in_loop(measure(plan))


async def described(plan: BenchPlan) -> ModelMetadata:
    """The plan's model by its metadata. Raises Unusable if there is no such server or model."""
    request = "\r\n".join([f"GET {plan.path} HTTP/1.1", *header_lines(plan), "Content-Length: 0", "", ""])
    found: list[Response] = []

    def note(pick: int, response: Response) -> int:
        found.append(response)
        return 0

    async with ConnectionPool(plan.target, [request.encode("ascii")], note, limit=1, timeout_s=plan.timeout_s) as pool:
        alone = await _alone(pool, 0)
    if not found:
        raise Unusable(f"url: expected a V2 server with model {plan.model!r}, got {alone.log[0].fault}")
    return ModelMetadata.parse(found[0].body)


async def _alone(pool: ConnectionPool, pick: int) -> ClosedLoop:
    """Send one request, and wait until it has ended."""
    alone = ClosedLoop(pool, itertools.repeat(pick), 1, 0)
    await alone.run()
    return alone


def endless_picks(random: np.random.Generator, among: range) -> Iterator[int]:
    while True:
        yield from random.integers(among.start, among.stop, 4096).tolist()


@contextmanager
def without_collections() -> Iterator[None]:
    """Disable the garbage collector, which would stop the loop for milliseconds; a run makes no cycles of objects."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
