"""Measures what requests cost a server beside their batches: CPU time of its event loop and of its helper threads, and
how much longer than alone the batches take.

A server is started for it and gets a few requests a second, then several at once, and then shares of the rate that it
answered then. Each run gives the loop's CPU time for so many requests in so many batches, so that a request's part and
a batch's part can be told apart; and what its batches took.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.bench.plan import Plan
from app.bench.run import Session, Unusable, in_loop
from app.bench.stats import Repeat
from app.errors import ConfigError
from app.sim.fit import Load
from app.sim.front import FrontCosts

_SPARSE = 50.0  # requests a second, which seldom meet: they pay for cold caches, as those of light traffic do
_IN_FLIGHT = 16  # requests: as many as meet at a busy server, not so many that they share all work
_SHARES = (0.3, 0.6, 0.9)  # of the rate at which those are answered
_WARM_S, _RUN_S = 0.5, 2.0
_END_S = 30.0
_ANY_LAG_MS = 1e5
_HELPER = "aside"  # what process.name_helper_threads calls them
_ALIKE = 2.0  # batches of both runs whose sizes differ by less do not tell requests and batches apart
_QUICK = 0.4  # the quantile of latencies that other work on the machine has hardly touched


@dataclass(frozen=True, slots=True)
class _Used:
    """What a run took, and its requests. CPU times in ns."""

    loop_ns: int
    helpers_ns: int
    repeat: Repeat

    def over(self, batch_ns: Sequence[int]) -> NDArray[np.float64]:
        """By request: how long its batch took, over what the profile says."""
        known = (self.repeat.batch > 0) & (self.repeat.compute_ns > 0)
        sizes = np.minimum(self.repeat.batch[known], len(batch_ns))
        return np.asarray(self.repeat.compute_ns[known] / np.array(batch_ns)[sizes - 1], np.float64)

    @property
    def rate(self) -> float:
        """Requests a second."""
        return self.requests / self.repeat.elapsed_s

    @property
    def requests(self) -> int:
        return len(self.repeat.latency_ns)

    @property
    def batches(self) -> float:
        return max(1.0, float((1 / self.repeat.batch[self.repeat.batch > 0]).sum()))


def measure_front(
    model: str,
    serve: Sequence[str],
    batch_ns: Sequence[int],
    handover_ns: int,
    payload: str = "json",
    data: Path | None = None,
) -> tuple[FrontCosts, list[Load]]:
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
    for run in runs:
        if not len(run.repeat.completed):
            raise ConfigError(f"http: no request was answered: {', '.join(run.repeat.examples.values())}")
    return _front(runs, batch_ns, handover_ns)


async def _runs(plan: Plan, pid: int) -> list[_Used]:
    async with Session(plan) as session:

        async def run(load: Plan) -> _Used:
            await session.once(load, plan.seed, _WARM_S)
            before = _threads_ns(pid)
            repeat = await session.once(load, plan.seed, _RUN_S)
            loop, helpers = (after - earlier for after, earlier in zip(_threads_ns(pid), before, strict=True))
            return _Used(loop, helpers, repeat)

        sparse = await run(replace(plan, concurrency=None, rate=_SPARSE))
        several = await run(replace(plan, concurrency=_IN_FLIGHT))
        rates = [max(_SPARSE, share * several.rate) for share in _SHARES]
        return [sparse, several, *[await run(replace(plan, concurrency=None, rate=rate)) for rate in rates]]


def _front(runs: Sequence[_Used], batch_ns: Sequence[int], handover_ns: int) -> tuple[FrontCosts, list[Load]]:
    call, batch = _parts(runs, [run.loop_ns for run in runs])
    decode, group = _parts(runs, [run.helpers_ns for run in runs])
    sparse, _, *others = runs
    times = [run.over(batch_ns) for run in (sparse, *others)]
    alone, spread = batch_ns[0], 0.0
    loads = []
    if all(len(one) for one in times):  # else the server does not say what its batches take
        loads = [Load(run.rate, float(one.mean())) for run, one in zip((sparse, *others), times, strict=True)]
        alone, spread = round(loads[0].over * batch_ns[0]), float(times[0].std() / times[0].mean())
    path = float(np.quantile(sparse.repeat.completed, _QUICK)) - alone - handover_ns - call - batch - decode - group
    costs = FrontCosts(round(call), round(batch), round(decode), round(group), round(path), spread=spread)
    return costs, loads


def _parts(runs: Sequence[_Used], used_ns: Sequence[int]) -> tuple[float, float]:
    """What each request and each batch took of what was used. Requests that are read together are batched together."""
    alone, several, *_ = runs
    if several.requests / several.batches > _ALIKE * alone.requests / alone.batches:
        requests = np.array([run.requests for run in runs])
        batches = np.array([run.batches for run in runs]) / requests
        (each, shared), *_ = np.linalg.lstsq(np.stack([np.ones(len(runs)), batches], 1), used_ns / requests)
        if min(each, shared) >= 0:  # else noise
            return float(each), float(shared)
    return used_ns[0] / alone.requests, 0.0


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
