"""The servers of the live half of `steps`: profiled, started, asked for their peak, and sent given instants."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.bench.peak import Try, find_peak
from app.bench.plan import Plan
from app.bench.run import Session, in_loop
from app.bench.stats import Repeat
from app.engine.profiling.tables import tables_of
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.sim import options
from loadtest.bench import servers
from loadtest.bench.load import LOOPBACK, ROOT
from loadtest.bench.simulation import command

from .gpu import MAX_BATCH
from .steps_runs import Course, Sent, Told, alternate, capacities

SLO_MS = 200.0  # the peak keeps it: the papers' QoS
TRY_S = 3.0  # a rate that is tried for the peak
_WAITS = ("window", "static", "preferred")
_PATIENCE_S = 300.0  # no request is given up in a run
_WARM_FLYING, _WARM_S = 64, 1.0  # opens the connections that steps near the peak need


class Bed:
    """A server for each policy, all up at once, all but one idle at any time. A context manager."""

    def __init__(self, model: str, chosen: argparse.Namespace, folder: Path) -> None:
        self.model = model
        self._chosen = chosen
        self._folder = folder
        self._source = f"{model}={ROOT / 'app' / 'models' / 'zoo' / model}"
        self._stack = ExitStack()
        self._servers: dict[str, servers.Server] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def profile(self) -> tuple[ModelProfile, ControlTables]:
        """Measured with the servers' settings; it and the tables solved from it lie where the servers look for them."""
        path = self._folder / "profile.json"
        command.starling(
            "profile", self.model, "--model", self._source, "--max-batch", str(MAX_BATCH), "--threads",
            str(self._chosen.threads), "--budget-s", str(self._chosen.budget), "--no-suggest", "--out", str(path),
            profile_dir=self._folder,
        )  # fmt: skip
        profile = options.profile(str(path))
        # Solved before the servers start: until its tables are there, `adaptive` does as `no_wait`.
        return profile, tables_of(profile, self._chosen.at_once, control.weight_of("latency"), self._folder)

    def start(self) -> None:
        for policy in self._chosen.policies:
            flags = server_flags(policy, self._chosen.at_once, self._chosen.delay)
            self._servers[policy] = self._stack.enter_context(
                servers.starling(
                    ("--model", self._source, "--max-batch", str(MAX_BATCH), "--threads", str(self._chosen.threads),
                     "--profile-dir", str(self._folder), "--profile-budget-s", "0", *flags)
                )
            )  # fmt: skip
        for server in self._servers.values():
            server.wait_ready()

    def peak(self, say: Told) -> float:
        """The largest rate whose 99th percentile stays within SLO_MS under `adaptive`."""

        def told(tried: Try) -> None:
            say(f"peak: {tried.rate:.0f}/s {tried.why or 'kept'}")

        plan = replace(self._plan("adaptive"), duration_s=TRY_S, repeats=1)
        rate = in_loop(find_peak(plan, SLO_MS, told)).result.plan.rate
        assert rate is not None
        return rate

    def run(self, courses: Sequence[dict[str, Course]], say: Told) -> dict[tuple[str, str], list[Sent]]:
        """By experiment and policy: a run for each seed."""
        return in_loop(self._run(courses, say))

    async def _run(self, courses: Sequence[dict[str, Course]], say: Told) -> Any:
        async with AsyncExitStack() as stack:
            sessions: dict[str, Session] = {}
            for policy in self._servers:
                session = await stack.enter_async_context(Session(self._plan(policy)))
                await session.once(replace(session.plan, concurrency=_WARM_FLYING), 0, _WARM_S)
                sessions[policy] = session

            async def send(policy: str, planned: Course, seed: int) -> Sent:
                before_s, began_s = self._others_s(), time.perf_counter()
                repeat = await send_at(sessions[policy], planned, seed, self._folder / "instants.txt")
                after_s, took_s = self._others_s(), time.perf_counter() - began_s
                if before_s is None or after_s is None:
                    return Sent(repeat)
                return Sent(repeat, max(0.0, after_s - before_s) / took_s)

            return await alternate(self._chosen.policies, courses, send, say)

    def _others_s(self) -> float | None:
        """CPU time that all processes but the servers and this one have used since the machine began (Linux only)."""
        used = [server.cpu_seconds() for server in self._servers.values()]
        known = [seconds for seconds in used if seconds is not None]
        if len(known) < len(used):
            return None
        ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - sum(known) - time.process_time()

    def _plan(self, policy: str) -> Plan:
        return Plan(
            url=f"http://{LOOPBACK}:{self._servers[policy].port}", model=self.model, payload="binary",
            timeout_s=_PATIENCE_S, connections=512, max_lag_ms=self._chosen.max_lag_ms,
        )  # fmt: skip


def server_flags(policy: str, at_once: int, delay_ms: float) -> tuple[str, ...]:
    """Of a policy's server. `ebird` has its own workers unless told otherwise."""
    flags = ["--policy", policy]
    if policy != "ebird":
        flags += ["--workers", ",".join(map(str, capacities(policy, at_once)))]
    if policy in _WAITS:
        flags += ["--max-delay-ms", f"{delay_ms:g}"]
    return tuple(flags)


def recorded(planned: Course, trace: Path) -> str:
    """The arrivals of `starling bench` that are these instants, written to `trace`: seconds to the nanosecond."""
    trace.write_text("".join(f"{at / 1e9:.9f}\n" for at in planned.instants.tolist()), encoding="ascii")
    return f"trace:{trace}"


async def send_at(session: Session, planned: Course, seed: int, trace: Path) -> Repeat:
    """Send these instants, as a trace that is written to `trace`, and wait for every answer."""
    plan = replace(session.plan, arrivals=recorded(planned, trace))
    return await session.once(plan, seed, (int(planned.instants[-1]) + 1) / 1e9)
