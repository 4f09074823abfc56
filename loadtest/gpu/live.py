"""Ebird's Figures 8 and 9 against servers on the GPU, and the energy per request.

All policies run on the same engine: the same workers, push depth and CUDA graphs. The baseline is `window`. On this
engine it copies inputs as they arrive and runs units at once; TF-Serving, the paper's baseline, does neither, so that
part of Ebird's gain is not measured here. All servers of a model run at the same time and are asked one after another;
this process only sends requests and waits for answers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.peak import Try, find_peak
from app.bench.plan import Plan
from app.bench.run import Lagging, Unusable, in_loop
from app.bench.run import Session as Bench
from app.bench.stats import Repeat
from loadtest.common import command
from loadtest.common.paths import LOOPBACK
from loadtest.common.servers import Server, ServerError, starling
from loadtest.common.simulated import stepped

from .data import COUNTS, HIGH, LOW, QOS_MS, Found
from .measurements import Engine, Measurement, OutOfTimeError, Session

DELAY_SHARE = 1 / 3  # of T(32): the paper's 30 ms for ResNet-152 on its GPU, whose T(32) was about 90 ms
_MAX_LAG_MS = 20.0  # of this process: a tenth of the QoS
_JOULES = re.compile(r'^starling_energy_joules_total\{source="(\w+)"\} (\S+)$', re.MULTILINE)
_FAULTS = (Lagging, Unusable, ValueError, ServerError, command.CommandError, OSError)


@dataclass(frozen=True, slots=True)
class Scale:
    """`probe_s`: length of a run at each rate tried for Figure 9. `seeds`: runs of Figure 8. `steady_s`: length of the
    runs for the energy."""

    probe_s: float = 1.2
    seeds: int = 4
    steady_s: float = 2.0
    budget_s: float = 12.0
    counts: tuple[int, int] = COUNTS


def scale_of(session: Session) -> Scale:
    if session.rehearsed:
        return Scale(0.4, 1, 0.4, 0.5, (15, 25))
    return Scale(1.0, 2, 1.5, 8.0) if session.quick else Scale()


def contenders(delay_ms: float, engine: Engine) -> dict[str, tuple[str, ...]]:
    """The server flags of each policy, all with the same engine.

    `ebird` is left out if it cannot run on this engine: it needs a worker of capacity 1 and push depth 1.
    """
    wait = ("--max-delay-ms", f"{delay_ms:.3f}")
    policies: dict[str, tuple[str, ...]] = {"window": wait, "static": wait, "no_wait": (), "ebird": (), "adaptive": ()}
    if 1 not in engine.workers or engine.push_depth > 1:
        del policies["ebird"]
    return {policy: ("--policy", policy, *more, *flags_of(engine)) for policy, more in policies.items()}


def flags_of(engine: Engine) -> tuple[str, ...]:
    graphs = "--cuda-graphs" if engine.graphs else "--no-cuda-graphs"
    return ("--workers", ",".join(map(str, engine.workers)), "--push-depth", str(engine.push_depth), graphs)


class PolicyServers:
    """One model's servers, one for each policy. They run inside `with serve(...)`."""

    def __init__(self, session: Session, model: str, scratch: Path) -> None:
        self.session = session
        self.model = model
        self.scale = scale_of(session)
        self._scratch = scratch
        self._home = session.folder(model).parent
        self._device = "cpu" if session.rehearsed else "cuda"
        self.servers: dict[str, Server] = {}

    def profile(self) -> Found:
        """Measure batch times into the folder where the servers look for them. Raises CommandError."""
        out = self._scratch / f"{self.model}.json"
        units = len(self.session.engine.workers)
        # a rehearsal's CPU may have fewer cores than there are workers
        at_once = ("--workers", str(units)) if units > 1 and not self.session.rehearsed else ()
        command.starling(
            "profile", self.model, "--models", str(self._home), "--device", self._device, "--max-batch",
            str(self.session.largest), *at_once, "--budget-s", str(self.scale.budget_s), "--no-suggest", "--out",
            str(out), profile_dir=self._profiles,
        )  # fmt: skip
        found = json.loads(out.read_text(encoding="utf-8"))
        times = {size: found["batch_ms"][size] for size in ("1", str(self.session.largest))}
        together = {units: table[str(self.session.largest)] for units, table in found.get("concurrency", {}).items()}
        return {"batch_ms": times, "together_ms": together, "largest": self.session.largest}

    @property
    def _profiles(self) -> Path:
        return self._scratch / "profiles"

    @contextmanager
    def serve(self, delay_ms: float) -> Iterator[None]:
        """Start all servers at the same time, since each loads on its own core. Raises ServerError."""
        common = ("--models", str(self._home), "--device", self._device, "--max-batch", str(self.session.largest),
                  "--profile-dir", str(self._profiles), "--profile-budget-s", "0")  # fmt: skip
        with ExitStack() as stack:
            for name, flags in contenders(delay_ms, self.session.engine).items():
                self.servers[name] = stack.enter_context(starling((*common, *flags)))
            with ThreadPoolExecutor(len(self.servers)) as waiting:
                list(waiting.map(lambda server: server.wait_ready(), self.servers.values()))
            yield

    def plan(self, name: str, **options: Any) -> Plan:
        """Answers are checked for shape, not for values: TF32 and batch sizes change the last digits."""
        return Plan(
            url=f"http://{LOOPBACK}:{self.servers[name].port}", model=self.model, payload="binary", check="shapes",
            duration_s=self.scale.probe_s, warmup_s=0.5, repeats=1, connections=512, max_lag_ms=_MAX_LAG_MS, **options,
        )  # fmt: skip

    def peak(self, name: str) -> Found:
        """Figure 9: the largest Poisson rate at which 99 % of the requests meet the QoS, to 5 % (`find_peak`)."""
        tries: list[Try] = []
        try:
            found = in_loop(find_peak(self.plan(name), QOS_MS, tries.append))
        except _FAULTS as exc:
            return {"rate": None, "why": str(exc), "tries": len(tries)}
        figures = found.result.figures
        last = next((tried.why for tried in reversed(tries) if tried.why), "")
        return {"rate": found.result.plan.rate, "p99_ms": figures["p99_ms"], "mean_batch": figures["mean_batch"],
                "why": last, "tries": len(tries)}  # fmt: skip

    def burst(self, name: str, rates: tuple[float, float]) -> Found:
        """Figure 8: requests at the low rate, then at the high rate, each timed from the instant it was due.

        Latencies in ms in order of arrival, one list for each seed; NaN for a request without a right answer. All
        policies get the same instants.
        """
        counts = self.scale.counts
        runs: list[Repeat] = []

        async def ask() -> None:
            async with Bench(self.plan(name, rate=rates[0])) as bench:
                await bench.warm()
                for seed in range(self.scale.seeds):
                    instants = stepped(list(zip(counts, rates, strict=True)), seed) / 1e9
                    trace = self._scratch / f"{self.model}-{seed}.txt"
                    trace.write_text("\n".join(f"{instant:.9f}" for instant in instants), encoding="utf-8")
                    plan = replace(bench.plan, rate=None, arrivals=f"trace:{trace}")
                    runs.append(await bench.once(plan, seed, float(instants[-1] - instants[0]) + 1e-3))
                    await bench.settle()

        try:
            in_loop(ask())
        except _FAULTS as exc:
            return {"why": str(exc)}
        latency = [np.where(run.latency_ns < 0, np.nan, run.latency_ns / 1e6).round(3).tolist() for run in runs]
        lags = np.concatenate([run.lag_ns for run in runs]) / 1e6
        return {"latency_ms": latency, "lag_p99_ms": float(np.quantile(lags, 0.99)),
                "errors": sum(sum(run.errors.values()) for run in runs)}  # fmt: skip

    def steady(self, name: str, rate: float) -> Found:
        """Mean latency and joules per answered request at a stable rate, from the energy counter before and after.

        The counter covers the whole GPU, including idle power and the contexts of the idle servers.
        """
        server = self.servers[name]

        async def ask() -> tuple[Repeat, float, str]:
            async with Bench(self.plan(name, rate=rate)) as bench:
                await bench.warm()
                before, source = joules_of(server)
                run = await bench.once(bench.plan, 0, self.scale.steady_s)
                return run, joules_of(server)[0] - before, source

        try:
            run, joules, source = in_loop(ask())
        except _FAULTS as exc:
            return {"rate": rate, "why": str(exc)}
        done = run.completed
        return {
            "rate": rate, "requests": len(done), "errors": sum(run.errors.values()), "source": source,
            "mean_ms": float(done.mean()) / 1e6 if len(done) else None,
            "joules": joules / len(done) if len(done) else None,
        }  # fmt: skip


def joules_of(server: Server) -> tuple[float, str]:
    """The server's energy counter and its source. Raises ServerError if it has none."""
    status, _, body = server.call("GET", "/metrics")
    found = _JOULES.search(body.decode())
    if status != 200 or found is None:
        raise ServerError(f"/metrics: expected starling_energy_joules_total, got status {status} without it")
    return float(found[2]), found[1]


def compare_policies(session: Session, model: str) -> Found:
    """All measurements of one model, one policy after another. What does not fit into the time is left out."""
    servers = PolicyServers(session, model, session.repository)
    found: Found = {
        "model": model, "engine": asdict(session.engine), "profile": servers.profile(), "peaks": {}, "burst": {},
        "steady": {}, "left_out": [],
    }  # fmt: skip
    delay = DELAY_SHARE * found["profile"]["batch_ms"][str(session.largest)]
    found["delay_ms"] = delay
    with servers.serve(delay):
        names = list(servers.servers)
        began = time.monotonic()
        found["peaks"]["window"] = servers.peak("window")
        took = time.monotonic() - began
        most = found["peaks"]["window"]["rate"]
        if most is None:
            found["left_out"].append(f"all else: no rate of the baseline: {found['peaks']['window']['why']}")
            return found
        rates = (LOW * most, HIGH * most)
        found["rates"], found["counts"] = rates, servers.scale.counts
        lasts = sum(count / rate for count, rate in zip(servers.scale.counts, rates, strict=True)) + 0.7
        each = {
            "burst": (lambda name: servers.burst(name, rates), servers.scale.seeds * lasts + 1.5),
            "peaks": (servers.peak, 1.2 * took),
            "steady": (lambda name: [servers.steady(name, rate) for rate in rates], 2 * (servers.scale.steady_s + 1.5)),
        }
        for figure, (measure, seconds) in each.items():
            _each(session, found, figure, (measure, seconds), names)
    return found


def _each(
    session: Session, found: Found, figure: str, work: tuple[Callable[[str], Any], float], names: list[str]
) -> None:
    measure, seconds = work
    for name in names:
        if name in found[figure]:
            continue
        try:
            session.need(seconds)
        except OutOfTimeError as exc:
            found["left_out"].append(f"{figure} of {name}: {exc}")
            continue
        found[figure][name] = measure(name)
        session.say(f"  {found['model']}: {figure} of {name}; {session.left():.0f} s are left")


def live(session: Session) -> Found:
    found: Found = {"runs": [], "left_out": [], "failed": []}
    for model in session.served:
        try:
            session.need(_start_s(session) + 40)
            found["runs"].append(compare_policies(session, model))
            found["left_out"] += [f"{model}: {text}" for text in found["runs"][-1].pop("left_out")]
        except OutOfTimeError as exc:
            found["left_out"].append(f"{model}: {exc}")
        except _FAULTS as exc:
            found["failed"].append(f"{model}: {exc}")
            session.say(f"  FAILED: {model}: {exc}")
    return found


def _start_s(session: Session) -> float:
    """Seconds for the profile and for the servers to capture their graphs side by side."""
    return 20.0 + scale_of(session).budget_s + 45.0


def _model_s(session: Session) -> float:
    """Seconds for one model: twelve rates for each policy's peak, and the rest as the scale says."""
    scale, count = scale_of(session), len(contenders(1.0, session.engine))
    return _start_s(session) + count * (12 * (scale.probe_s + 0.4) + scale.seeds * 1.8 + 2 * (scale.steady_s + 1.5))


LIVE = Measurement("live", 2, lambda session: len(session.served) * _model_s(session), live)
