"""Measures the cost of requests beside their batches: CPU time of a server's event loop and helper threads, and how
much slower batches are under load.

It starts a server, sends many requests at once, and then shares of the rate reached so, at first a small one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.errors import ConfigError
from loadtest.common.servers import ServerError, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Session, Unusable, in_loop
from loadtest.generator.stats import Repeat
from planner.fit import front_costs
from planner.front_load import FrontLoad
from planner.simulated_front import FrontCosts

_IN_FLIGHT = 64  # requests at once
_SPARSE, _SHARES = 0.05, (0.3, 0.6, 0.9)  # of the rate that is reached with these
_LEAST, _MOST = 5.0, 50.0  # requests a second of the sparse load: they seldom overlap, and there are some
_WARM_S, _RUN_S = 0.5, 2.0
_ANY_LAG_MS = 1e5
_HELPER = "aside"  # the name of helper threads, from process.name_helper_threads
_QUICK = 0.4  # a quantile of latencies that other work on the machine hardly changes


def measure_front(
    model: str,
    serve: Sequence[str],
    batch_ns: Sequence[int],
    handover_ns: int,
    payload: str = "json",
    data: Path | None = None,
) -> tuple[FrontCosts, list[FrontLoad]]:
    """The costs of requests of one row, over loopback, and the loads that `planner.fit` fits `scale` and `slowed` to.

    Starts `starling serve` with the flags `serve` on a free port, puts load on `model`, and ends it. Requests are made
    up, or read from `data` as by `starling bench --data`. `batch_ns`, by size, and `handover_ns` are the profile's.
    Raises ConfigError if that fails, or if the system does not tell the CPU time of threads.
    """
    try:
        with starling(serve) as server:
            server.wait_ready()
            # the client's lag does not change the CPU times of the server's threads
            plan = BenchPlan(
                url=server.url, model=model, payload=payload, data=data, concurrency=1, duration_s=_RUN_S, warmup_s=0,
                repeats=1, check="shapes", max_lag_ms=_ANY_LAG_MS,
            )  # fmt: skip
            runs = in_loop(_runs(plan, server.process.pid))
    except (ServerError, Unusable) as exc:
        raise ConfigError(f"http: {exc}") from None
    for repeat, _ in runs:
        if not len(repeat.completed):
            raise ConfigError(f"http: no request was answered: {', '.join(repeat.examples.values())}")
    return _front(runs, batch_ns, handover_ns)


async def _runs(plan: BenchPlan, pid: int) -> list[tuple[Repeat, FrontLoad]]:
    async with Session(plan) as session:

        async def run(load: BenchPlan) -> tuple[Repeat, FrontLoad]:
            await session.once(load, plan.seed, _WARM_S)
            before = _threads_ns(pid)
            repeat = await session.once(load, plan.seed, _RUN_S)
            loop, helpers = (after - earlier for after, earlier in zip(_threads_ns(pid), before, strict=True))
            return repeat, _load(repeat, loop, helpers)

        closed = await run(replace(plan, concurrency=_IN_FLIGHT))
        reached = closed[1].requests / closed[1].seconds
        rates = [min(_MOST, max(_LEAST, _SPARSE * reached)), *(share * reached for share in _SHARES)]
        return [closed, *[await run(replace(plan, concurrency=None, rate=rate)) for rate in rates]]


def _load(repeat: Repeat, loop_ns: int, helpers_ns: int) -> FrontLoad:
    """The load of a run; without batches if the server does not report their times."""
    known = (repeat.batch > 0) & (repeat.compute_ns > 0)
    sizes, times = repeat.batch[known], repeat.compute_ns[known] / 1e9
    batches, spreads = {}, []
    for size in np.unique(sizes).tolist():
        took = times[sizes == size]
        batches[size] = (len(took) / size, float(took.sum()) / size)  # each of a batch's requests has its time
        spreads.append(took / took.mean() - 1)
    spread = float(np.concatenate(spreads).std()) if spreads else 0.0
    seconds, requests = repeat.elapsed_s, len(repeat.latency_ns)
    return FrontLoad(seconds, requests, loop_ns / 1e9, helpers_ns / 1e9, batches, spread)


def _front(
    runs: Sequence[tuple[Repeat, FrontLoad]], batch_ns: Sequence[int], handover_ns: int
) -> tuple[FrontCosts, list[FrontLoad]]:
    """The costs, and the loads of open loops only: a closed loop does not show how much batches are slowed."""
    loads = [load for _, load in runs]
    costs, sparse = front_costs(loads), loads[1]
    alone = round(sparse.over(batch_ns) * batch_ns[0]) if sparse.batches else batch_ns[0]
    held = costs.call_ns + costs.batch_ns + costs.decode_ns + costs.group_ns
    path = float(np.quantile(runs[1][0].completed, _QUICK)) - alone - handover_ns - held
    return replace(costs, path_ns=round(path)), loads[1:]


def _threads_ns(pid: int) -> tuple[int, int]:
    """CPU nanoseconds of a process's main thread and of its helper threads."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        used = {
            task.name: ((task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0]))
            for task in tasks.iterdir()
        }
        return used[str(pid)][1], sum(ns for name, ns in used.values() if name == _HELPER)
    except (OSError, ValueError, IndexError, KeyError):
        raise ConfigError("http: this system does not tell a thread's CPU time; give --http-us") from None
