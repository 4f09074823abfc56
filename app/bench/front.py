"""Measures what requests cost a server beside their batches: CPU time of its event loop and of its helper threads, and
how much longer than alone the batches take.

A server is started for it and gets a few requests a second, then several at once, and then shares of the rate that it
answered then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from app.bench.plan import Plan
from app.bench.run import Session, Unusable, in_loop
from app.bench.stats import Repeat
from app.errors import ConfigError
from app.scheduler.estimates.front_load import FrontLoad
from app.sim.fit import front_costs
from app.sim.front import FrontCosts

_SPARSE = 50.0  # requests a second, which seldom meet: they pay for cold caches, as those of light traffic do
_IN_FLIGHT = 16  # requests: as many as meet at a busy server, not so many that they share all work
_SHARES = (0.3, 0.6, 0.9)  # of the rate at which those are answered
_WARM_S, _RUN_S = 0.5, 2.0
_END_S = 30.0
_ANY_LAG_MS = 1e5
_HELPER = "aside"  # what process.name_helper_threads calls them
_QUICK = 0.4  # the quantile of latencies that other work on the machine has hardly touched


def measure_front(
    model: str,
    serve: Sequence[str],
    batch_ns: Sequence[int],
    handover_ns: int,
    payload: str = "json",
    data: Path | None = None,
) -> tuple[FrontCosts, list[FrontLoad]]:
    """Of requests of one row, over loopback: made up, or as `--data` of `starling bench`.

    Starts `starling serve` with the flags `serve` on a free port, puts load on `model`, and ends it. `batch_ns`, by
    size, and `handover_ns`: of the model's profile. Raises ConfigError where that fails, and where the system does not
    tell what a thread costs. Returns what `app.sim.fit` is to be given for `scale` and `slowed`, too.
    """
    with _server(serve) as (process, url):
        # How late this client is says nothing of what the server's threads cost.
        plan = Plan(
            url=url, model=model, payload=payload, data=data, concurrency=1, duration_s=_RUN_S, warmup_s=0, repeats=1,
            check="shapes", max_lag_ms=_ANY_LAG_MS,
        )  # fmt: skip
        try:
            runs = in_loop(_runs(plan, process.pid))
        except Unusable as exc:
            raise ConfigError(f"http: {exc}") from None
    for repeat, _ in runs:
        if not len(repeat.completed):
            raise ConfigError(f"http: no request was answered: {', '.join(repeat.examples.values())}")
    return _front(runs, batch_ns, handover_ns)


async def _runs(plan: Plan, pid: int) -> list[tuple[Repeat, FrontLoad]]:
    async with Session(plan) as session:

        async def run(load: Plan) -> tuple[Repeat, FrontLoad]:
            await session.once(load, plan.seed, _WARM_S)
            before = _threads_ns(pid)
            repeat = await session.once(load, plan.seed, _RUN_S)
            loop, helpers = (after - earlier for after, earlier in zip(_threads_ns(pid), before, strict=True))
            return repeat, _load(repeat, loop, helpers)

        sparse = await run(replace(plan, concurrency=None, rate=_SPARSE))
        several = await run(replace(plan, concurrency=_IN_FLIGHT))
        rates = [max(_SPARSE, share * several[1].rate) for share in _SHARES]
        return [sparse, several, *[await run(replace(plan, concurrency=None, rate=rate)) for rate in rates]]


def _load(repeat: Repeat, loop_ns: int, helpers_ns: int) -> FrontLoad:
    """What a run took; without batches where the server does not say what these take."""
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
    """The costs, and the loads of open loops: how slow batches are beside clients that wait for them says little."""
    loads = [load for _, load in runs]
    costs, sparse = front_costs(loads), loads[0]
    alone = round(sparse.over(batch_ns) * batch_ns[0]) if sparse.batches else batch_ns[0]
    held = costs.call_ns + costs.batch_ns + costs.decode_ns + costs.group_ns
    path = float(np.quantile(runs[0][0].completed, _QUICK)) - alone - handover_ns - held
    return replace(costs, path_ns=round(path)), [sparse, *loads[2:]]


def _threads_ns(pid: int) -> tuple[int, int]:
    """Nanoseconds of CPU that a process's first thread and its helper threads have used."""
    tasks = Path(f"/proc/{pid}/task")
    try:
        used = {
            task.name: ((task / "comm").read_text().strip(), int((task / "schedstat").read_text().split()[0]))
            for task in tasks.iterdir()
        }
        return used[str(pid)][1], sum(ns for name, ns in used.values() if name == _HELPER)
    except (OSError, ValueError, IndexError, KeyError):
        raise ConfigError("http: this system does not tell a thread's CPU time; give --http-us") from None


@contextmanager
def _server(flags: Sequence[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its URL."""
    command = [sys.executable, "-m", "app", "serve", *flags, "--port", "0", "--drain-grace-s", "0"]
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STARLING_")}  # no key, no JSON
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=plain) as process:
        try:
            assert process.stderr is not None
            lines, url = [], ""
            for line in process.stderr:
                lines.append(line.strip())
                if found := re.match(r"url +(\S+)", line):
                    url = found[1]
                if re.search(r"\d+ of \d+ models? .*serves? on ", line):
                    break
            else:
                raise ConfigError(f"http: the server did not start: {lines[-1] if lines else 'it said nothing'}")
            rest = threading.Thread(target=process.stderr.read, daemon=True)  # or it stops at a full pipe
            rest.start()
            yield process, url
        finally:
            process.terminate()
            try:
                process.wait(_END_S)
            except subprocess.TimeoutExpired:
                process.kill()
