"""Helpers for experiments with live servers: several at once, loads in turns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from types import MappingProxyType

from loadtest.common.servers import MeasurementError, Server, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session
from loadtest.generator.stats import Repeat


def right(name: str, repeat: Repeat) -> Repeat:
    """The run, if every answer is right. Raises MeasurementError with the name of who was asked."""
    for example in repeat.examples.values():
        raise MeasurementError(f"{name}: {example}")
    return repeat


def rotated(names: Iterable[str], number: int) -> list[str]:
    """The names in the order of round `number`: each round begins with another one, so that none is always first."""
    given = list(names)
    first = number % len(given)
    return [*given[first:], *given[:first]]


@contextmanager
def serving(
    flags: Mapping[str, Sequence[str]], commands: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Iterator[dict[str, Server]]:
    """A server for each of these flags, by name, all ready. `commands`: of those that are not `starling`'s own."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(starling(given, commands.get(name, ()))) for name, given in flags.items()}
        for server in servers.values():
            server.wait_ready()
        yield servers


async def in_turns(plans: Mapping[str, BenchPlan]) -> dict[str, list[Repeat]]:
    """The runs of each plan, by name. With a seed each has its turn before the next seed, and another one is first."""
    runs: dict[str, list[Repeat]] = {name: [] for name in plans}
    async with AsyncExitStack() as stack:
        sessions = {name: await stack.enter_async_context(Session(plan)) for name, plan in plans.items()}
        for session in sessions.values():
            await session.warm()
            await session.settle()
        for number in range(next(iter(plans.values())).repeats):
            for name in rotated(plans, number):
                plan = plans[name]
                runs[name].append(await sessions[name].once(plan, plan.seed + number, plan.duration_s))
                await sessions[name].settle()  # no queue is left for the next
    return runs
