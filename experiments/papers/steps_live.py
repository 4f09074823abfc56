"""The servers of `steps`: profiles and starts them, finds the peak, and sends requests at given instants."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from app.bench.plan import Plan
from app.bench.run import Session, in_loop
from app.bench.stats import Repeat
from app.engine.profiling.tables import tables_of
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal import tables as control
from app.scheduler.optimal.tables import ControlTables
from app.sim import options
from experiments.common.live import OtherProcesses, peak_rate
from experiments.papers.modelled_gpu import MAX_BATCH
from experiments.papers.steps_runs import PlannedRun, Say, Sent, alternate, capacities
from loadtest.common import command, servers
from loadtest.common.paths import LOOPBACK, ZOO

TRY_S = 3.0  # of each rate tried for the peak
_WAITS = ("window", "static", "preferred")
_PATIENCE_S = 300.0  # time limit of a request, longer than any run
_WARM_FLYING, _WARM_S = 64, 1.0  # opens the connections that steps near the peak need


class LiveServers:
    """A server for each policy. All run at once, and only one is asked at a time. A context manager."""

    def __init__(self, model: str, chosen: argparse.Namespace, folder: Path) -> None:
        self.model = model
        self._chosen = chosen
        self._folder = folder
        self._source = f"{model}={ZOO / model}"
        self._stack = ExitStack()
        self._servers: dict[str, servers.Server] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def profile(self) -> tuple[ModelProfile, ControlTables]:
        """Measure batch times with the servers' settings and solve control tables, in the folder that servers read."""
        path = self._folder / "profile.json"
        command.starling(
            "profile", self.model, "--model", self._source, "--max-batch", str(MAX_BATCH), "--threads",
            str(self._chosen.threads), "--budget-s", str(self._chosen.budget), "--no-suggest", "--out", str(path),
            profile_dir=self._folder,
        )  # fmt: skip
        profile = options.profile(str(path))
        # Solved before the servers start, because `adaptive` acts like `no_wait` until its tables are there.
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

    def peak(self, slo_ms: float, say: Say) -> float:
        """The largest rate whose 99th percentile stays within `slo_ms` under `adaptive`."""
        return peak_rate(self._plan("adaptive"), slo_ms, TRY_S, say)

    def run(self, plans: Sequence[dict[str, PlannedRun]], say: Say) -> dict[tuple[str, str], list[Sent]]:
        """Run all; returns a run for each seed, by schedule and policy."""
        return in_loop(self._run(plans, say))

    async def _run(self, plans: Sequence[dict[str, PlannedRun]], say: Say) -> Any:
        async with AsyncExitStack() as stack:
            sessions: dict[str, Session] = {}
            for policy in self._servers:
                session = await stack.enter_async_context(Session(self._plan(policy)))
                await session.once(replace(session.plan, concurrency=_WARM_FLYING), 0, _WARM_S)
                sessions[policy] = session

            async def send(policy: str, planned: PlannedRun, seed: int) -> Sent:
                others = OtherProcesses(list(self._servers.values()))
                repeat = await send_at(sessions[policy], planned, seed, self._folder / "instants.txt")
                return Sent(repeat, others.cores())

            return await alternate(self._chosen.policies, plans, send, say)

    def _plan(self, policy: str) -> Plan:
        return Plan(
            url=f"http://{LOOPBACK}:{self._servers[policy].port}", model=self.model, payload="binary",
            timeout_s=_PATIENCE_S, connections=512, max_lag_ms=self._chosen.max_lag_ms,
        )  # fmt: skip


def server_flags(policy: str, at_once: int, delay_ms: float) -> tuple[str, ...]:
    """The flags of a policy's server. `ebird` has its own workers by default."""
    flags = ["--policy", policy]
    if policy != "ebird":
        flags += ["--workers", ",".join(map(str, capacities(policy, at_once)))]
    if policy in _WAITS:
        flags += ["--max-delay-ms", f"{delay_ms:g}"]
    return tuple(flags)


def recorded(planned: PlannedRun, trace: Path) -> str:
    """Write the instants to `trace` and return the `arrivals` option that sends them: seconds to the nanosecond."""
    trace.write_text("".join(f"{at / 1e9:.9f}\n" for at in planned.instants.tolist()), encoding="ascii")
    return f"trace:{trace}"


async def send_at(session: Session, planned: PlannedRun, seed: int, trace: Path) -> Repeat:
    """Send requests at these instants and wait for every answer. They are written to `trace`."""
    plan = replace(session.plan, arrivals=recorded(planned, trace))
    return await session.once(plan, seed, (int(planned.instants[-1]) + 1) / 1e9)
