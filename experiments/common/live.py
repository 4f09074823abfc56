"""Helpers for experiments with live servers: several at once, loads in turns, a peak, other processes' CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from loadtest.common.servers import MeasurementError, Server, starling
from loadtest.generator.peak import Try, find_peak
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session, in_loop
from loadtest.generator.stats import Repeat


def peak_rate(plan: BenchPlan, slo_ms: float, try_s: float, say: Callable[[str], None]) -> float:
    """The largest rate whose 99th percentile stays within `slo_ms`; each rate is tried for `try_s` seconds."""

    def told(tried: Try) -> None:
        say(f"peak: {tried.rate:.0f}/s {tried.why or 'kept'}")

    rate = in_loop(find_peak(replace(plan, duration_s=try_s, repeats=1), slo_ms, told)).result.plan.rate
    assert rate is not None
    return rate


def right(name: str, repeat: Repeat) -> Repeat:
    """The run, if every answer is right. Raises MeasurementError with the name of who was asked."""
    for example in repeat.examples.values():
        raise MeasurementError(f"{name}: {example}")
    return repeat


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
        names = list(plans)
        for number in range(plans[names[0]].repeats):
            first = number % len(names)
            for name in (*names[first:], *names[:first]):
                plan = plans[name]
                runs[name].append(await sessions[name].once(plan, plan.seed + number, plan.duration_s))
                await sessions[name].settle()  # no queue is left for the next
    return runs


def rows_a_batch(runs: Sequence[Repeat]) -> float:
    """The mean over batches, of answers that say which batch they came from; 0 of none."""
    sizes = np.concatenate([run.batch[(run.latency_ns >= 0) & (run.batch > 0)] for run in runs])
    return float(1 / np.mean(1 / sizes)) if len(sizes) else 0.0


class OtherProcesses:
    """Measures how many cores processes other than these servers and this one use (Linux only)."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers
        self._began_s = time.perf_counter()
        self._before_s = self._used_s()

    def cores(self) -> float | None:
        """The average since the object was made; None if the platform does not report it."""
        now_s = self._used_s()
        if now_s is None or self._before_s is None:
            return None
        return max(0.0, now_s - self._before_s) / (time.perf_counter() - self._began_s)

    def _used_s(self) -> float | None:
        """CPU time of all processes except the servers and this one since the machine started."""
        used = [server.cpu_seconds() for server in self._servers]
        known = [seconds for seconds in used if seconds is not None]
        if len(known) < len(used):
            return None
        ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - sum(known) - time.process_time()
