"""One run of the benchmarks: its options, its load client, and the server that its cases share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self, TypeVar

from loadtest.bench import bodies
from loadtest.common.servers import Server, ServerError, starling
from loadtest.generator import closed_loop, one_connection
from loadtest.generator.load import CONNECTIONS, Load, LoadError, LoadResult, PreparedRequest, TimedAnswer, answer_of

T = TypeVar("T")

#: The targets are for this largest batch and number of threads; `bench` contains every measured model.
FLAGS = ("--models", "bench", "--max-batch", "32", "--threads", "1")
BATCH = 32
THREADS = 1
MOST_TIMED = 50_000  # answers of one load


@dataclass(frozen=True)
class Plan:
    """The options of a run. `server` replaces the server of this checkout."""

    rounds: int = 5
    seconds: float = 3.0
    server: tuple[str, ...] = ()
    say: Callable[[str], None] = print


@dataclass(frozen=True)
class Measured:
    """A load's result, and the server's CPU time per request in microseconds (None if not known)."""

    result: LoadResult
    cpu_us: float | None

    @property
    def per_second(self) -> float:
        return self.result.per_second


class Session:
    """Runs loads for the cases and starts the shared server when it is first needed. A context manager."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.stack = ExitStack()
        self.shared: Server | None = None
        self.unusable = ""  # why the shared server did not start; it is not started again for each case
        self.best: dict[str, float] = {}  # request name -> the highest rate that any server reached

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.stack.close()

    def starling(self) -> Server:
        """The server under test with every benchmark model."""
        if self.unusable:
            raise ServerError(self.unusable)
        if self.shared is None:
            self.plan.say("starting the server with the benchmark models")
            server = self.stack.enter_context(starling(FLAGS, self.plan.server))
            try:
                self.plan.say(f"ready after {server.wait_ready():.1f} s")
            except ServerError as error:
                self.stack.close()
                self.unusable = f"as in the case before: {str(error).splitlines()[0]}"
                raise
            self.shared = server
        return self.shared

    def request(self, model: str, make: Callable[[dict[str, object]], PreparedRequest]) -> PreparedRequest:
        """A request for `model`, sent once to check its answer."""
        request = make(self.starling().metadata(model))
        bodies.check(request, *answer_of(self.starling(), request))
        return request

    def load(
        self, server: Server, request: PreparedRequest, seconds: float | None = None, refusals: bool = False
    ) -> Measured:
        """Saturate `server`.

        Raises LoadError unless every answer is a 200, or a 429 where `refusals` are counted.
        """
        load = Load(server.port, request, self.plan.seconds if seconds is None else seconds, refusals=refusals)
        before = server.cpu_seconds()
        result = closed_loop.run(load)
        after = server.cpu_seconds()
        self.expect_clean(request, result)
        self.best[request.name] = max(self.best.get(request.name, 0.0), result.per_second)
        answers = result.requests + result.refused
        cpu_us = None if before is None or after is None else (after - before) / answers * 1e6
        return Measured(result, cpu_us)

    def alone(self, server: Server, request: PreparedRequest, seconds: float | None = None) -> LoadResult:
        """Send one request after another on one connection, to measure latencies."""
        load = Load(server.port, request, self.plan.seconds if seconds is None else seconds, connections=1)
        return one_connection.run(load)

    def timed(self, request: PreparedRequest, connections: int, seconds: float | None = None) -> list[TimedAnswer]:
        """Load the server under test; returns the times that the server reports."""
        duration_s = self.plan.seconds if seconds is None else seconds
        result = closed_loop.run(Load(self.starling().port, request, duration_s, connections, timed=MOST_TIMED))
        self.expect_clean(request, result)
        if not result.timed:
            raise LoadError(f"{request.name}: expected answers with Server-Timing, got none")
        return result.timed

    def checked(self, server: Server, request: PreparedRequest) -> None:
        """Warm up `server` for a second; each answer is compared with the first."""
        _, answer = answer_of(server, request)
        self.expect_clean(request, closed_loop.run(Load(server.port, request, 1.0, answer=answer)))

    def warm_up(self, server: Server, *requests: PreparedRequest) -> None:
        """Run a second of each load that is not counted: first calls allocate, and clock rates rise."""
        for request in requests:
            self.load(server, request, seconds=1.0)

    @staticmethod
    def expect_clean(request: PreparedRequest, result: LoadResult) -> None:
        if result.failed or not result.requests + result.refused:
            raise LoadError(f"{request.name}: {result.requests} answers, failures {result.failed}")


CLIENT = f"the load generator of starling bench, {CONNECTIONS} connections"


def alternate(rounds: int, *measures: Callable[[], T]) -> list[list[T]]:
    """Run each in turns, A B A B ..., so that a change of the machine affects all of them; one list for each."""
    results: list[list[T]] = [[] for _ in measures]
    for _ in range(rounds):
        for measured, contender in zip(results, measures, strict=True):
            measured.append(contender())
    return results


def ratios(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, ...]:
    """Ratios by round: the two are close in time, so that drift cancels."""
    return tuple(a / b for a, b in zip(numerator, denominator, strict=True))
