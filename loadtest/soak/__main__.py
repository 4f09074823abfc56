"""Half an hour of load with faults: `python -m loadtest.soak`. Writes docs/bench/soak.json.

One server, the steady one, has two workers and open-loop load at 60 % of the rate that `starling bench` finds to be its
peak, while clients leave, read slowly, send what is wrong and what fails in the model; while the model is loaded again,
another comes and goes, and a third cannot be loaded; and while its log is read only now and then. Beside it a replica
of three workers with a little load gets a SIGTERM and is replaced, over and over. All that was asked must have been
answered rightly, and the steady server's memory must be flat. The exit status is 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run, Say
from loadtest.common.page import Page
from loadtest.common.servers import MeasurementError, Server, starling
from loadtest.generator.peak import Try, find_peak
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import Lagging, Session, in_loop
from loadtest.generator.stats import Repeat, percentile
from loadtest.soak.faults import MODEL, MODELS, Told, add_models, inject, prepare, rehearse, schedule
from loadtest.soak.log_reader import READ_S, STALL_S, LogReader
from loadtest.soak.memory import Trend, trend

SHARE = 0.6  # of the peak
SLO_MS = 50.0  # of the 99th percentile, at the peak
TRY_S = 3.0  # that each rate of the search is tried for
STRETCH_S = 20.0  # of load whose figures are kept together: a log of half an hour would be the client's memory
SAMPLE_S = 0.5
SETTLE_S = 300.0  # for caches to fill and memory to be as it stays; half of a shorter soak
BESIDE = 20.0  # requests a second to the replica that is replaced
LIFE_S = 30.0  # its mean life
GRACE_S = 3.0  # for which a replica that was told to end takes requests
AFTER_S = 1.0  # for which it still gets some: a balancer notices so late
END_S = 30.0
HERE = MODELS / MODEL
#: The queue holds what comes while the machine is busy with something else for seconds, so that nothing is refused.
FLAGS = ("--threads", "1", "--profile-budget-s", "0", "--model-control", "--max-queue", "16384")


@dataclass
class Load:
    """What became of the requests of an open loop. `stretches`: times in s, latencies in ms."""

    requests: int = 0
    completed: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    stretches: list[dict[str, float]] = field(default_factory=list)

    def add(self, repeat: Repeat, at_s: float) -> None:
        done = repeat.completed
        self.requests += len(repeat.intended_ns)
        self.completed += len(done)
        self.errors += repeat.errors
        self.examples = {**repeat.examples, **self.examples}
        shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
        latencies = {name: percentile(done, share) or 0.0 for name, share in shares.items()}
        self.stretches.append({"at_s": at_s, "requests": len(repeat.intended_ns), **latencies})


def start_steady(profiles: Path, repository: Path, output: IO[bytes]) -> Server:
    flags = ("--models", str(repository), "--workers", "2x32", "--access-log", *FLAGS)
    return starling(("--profile-dir", str(profiles), *flags), log=output)


def start_replica(profiles: Path) -> Server:
    flags = ("--model", f"{MODEL}={HERE}", "--workers", "3x32", "--drain-grace-s", str(GRACE_S), *FLAGS)
    return starling(("--profile-dir", str(profiles), *flags))


def plan_of(server: Server, rate: float, seed: int) -> BenchPlan:
    return BenchPlan(url=server.url, model=MODEL, rate=rate, seed=seed, timeout_s=30.0)


def peak_of(plan: BenchPlan, say: Say) -> float:
    """The largest rate that keeps SLO_MS; where the client is late before the server is, the largest that it managed.

    The peak only sets the load, and of the load what counts is whether requests are answered. Raises Lagging if the
    client manages none.
    """
    kept: list[float] = []

    def told(tried: Try) -> None:
        say(f"peak: {tried.rate:.0f}/s {tried.why or 'kept'}")
        if tried.kept:
            kept.append(tried.rate)

    plan = replace(plan, duration_s=TRY_S, repeats=1, max_lag_ms=1000.0)
    try:
        found = in_loop(find_peak(plan, SLO_MS, told)).result.plan.rate
    except Lagging:
        if not kept:
            raise
        found = max(kept)
    assert found is not None
    return found


class Soak:
    """The steady server, all that is done to it, and the replica beside it."""

    def __init__(self, steady: Server, folder: Path, rate: float, chosen: argparse.Namespace, say: Say) -> None:
        self.steady, self.folder, self.rate, self.say = steady, folder, rate, say
        self.seconds, self.seed = float(chosen.seconds), int(chosen.seed)
        self.load, self.told, self.beside = Load(), Told(), Load()
        self.replacements: list[dict[str, Any]] = []
        self.samples: dict[str, list[float]] = {"at_s": [], "mib": [], "threads": [], "descriptors": []}
        self._began_s = 0.0

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time() - self._began_s

    async def run(self) -> None:
        self._began_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._sample())
            group.create_task(inject(self.steady, schedule(self.seconds, self.seed), self.told))
            group.create_task(self._replace())
            group.create_task(self._put_load())

    async def _put_load(self) -> None:
        plan = plan_of(self.steady, self.rate, self.seed)
        async with Session(plan) as session:
            while (left_s := self.seconds - self._now_s()) > 0:
                at_s = self._now_s()
                seed = self.seed + len(self.load.stretches)
                self.load.add(await session.once(plan, seed, min(STRETCH_S, max(1.0, left_s))), at_s)
                if len(self.load.stretches) % 6 == 0:
                    self.say(f"{self._now_s():.0f} s: {self.load.completed:,} of {self.load.requests:,}")

    async def _sample(self) -> None:
        while (at_s := self._now_s()) < self.seconds:
            for name, value in ({"at_s": round(at_s, 2)} | look(self.steady.process.pid)).items():
                self.samples[name].append(value)
            await asyncio.sleep(SAMPLE_S)

    async def _replace(self) -> None:
        """A replica lives for a while, gets a SIGTERM under load, and is followed by another."""
        draw = random.Random(f"{self.seed} replace")
        while self._now_s() < self.seconds:
            server = await asyncio.to_thread(start_replica, self.folder)
            try:
                ready_s = await asyncio.to_thread(server.wait_ready)
                # At least one comes to its end in a short soak too.
                life_s = draw.uniform(0.5, 1.5) * min(LIFE_S, self.seconds / 4)
                self.replacements.append(
                    {"at_s": self._now_s(), "ready_s": ready_s, **await self._live(server, life_s)}
                )
            finally:
                await asyncio.to_thread(server.stop)

    async def _live(self, server: Server, life_s: float) -> dict[str, Any]:
        plan = plan_of(server, BESIDE, self.seed + len(self.replacements))
        async with Session(plan) as session:
            asyncio.get_running_loop().call_later(life_s, server.process.send_signal, signal.SIGTERM)
            self.beside.add(await session.once(plan, plan.seed, life_s + AFTER_S), self._now_s())
        began_s = self._now_s()
        try:
            status = await asyncio.to_thread(server.process.wait, END_S)
        except subprocess.TimeoutExpired:
            raise MeasurementError(f"a replica had not ended {END_S:g} s after its last request") from None
        return {"exit": status, "life_s": life_s, "ended_s": AFTER_S + self._now_s() - began_s}


def look(pid: int) -> dict[str, float]:
    """Memory, threads and open files of a process."""
    proc = Path(f"/proc/{pid}")
    return {
        "mib": round(command.resident_mib(pid), 2),
        "threads": len(list((proc / "task").iterdir())),
        "descriptors": len(list((proc / "fd").iterdir())),
    }


def left_over(server: Server) -> dict[str, float]:
    """Rows that wait and slots in use when all has been answered, by metric; models of all versions together."""
    _, _, text = server.call("GET", "/metrics")
    found: Counter[str] = Counter()
    for line in text.decode().splitlines():
        name, _, value = line.rpartition(" ")
        for metric in ("starling_queue_length", "starling_pool_slots_used"):
            if name.startswith(f"{metric}{{"):
                found[metric] += float(value)  # type: ignore[assignment]
    return dict(found)


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-soak-") as name, ExitStack() as stack:
        folder, repository = Path(name) / "profiles", Path(name) / "models"
        repository.mkdir()
        prepare(repository)
        if chosen.budget:
            # Before: under load it would be found idle now and then for minutes, and tables solved in between.
            flags = ("--model", f"{MODEL}={HERE}", "--threads", "1", "--workers", "1")
            command.profile(folder, MODEL, *flags, "--budget-s", str(chosen.budget))
        reader = stack.enter_context(LogReader())
        steady = stack.enter_context(start_steady(folder, repository, reader.output))
        steady.wait_ready()
        add_models(repository)
        in_loop(rehearse(steady, chosen.rehearse))
        peak = chosen.peak
        if peak is None:
            peak = peak_of(plan_of(steady, 1.0, chosen.seed), run.say)
        rate = SHARE * peak
        run.say(f"peak {peak:.0f}/s, load {rate:.0f}/s for {chosen.seconds:g} s")
        soak = Soak(steady, folder, rate, chosen, run.say)
        in_loop(soak.run())
        rest = left_over(steady)
        log = reader.settled(steady)
        steady.process.send_signal(signal.SIGINT)
        status = steady.process.wait(END_S)
    settings = {
        "seconds": soak.seconds, "seed": soak.seed, "share": SHARE, "slo_ms": SLO_MS, "beside": BESIDE,
        "grace": GRACE_S, "rehearsed": chosen.rehearse, "settle_s": min(SETTLE_S, soak.seconds / 2),
        "given": chosen.peak is not None, "read_s": READ_S, "stall_s": STALL_S,
    }  # fmt: skip
    data: Data = {
        "settings": settings, "peak": peak, "rate": rate, "load": vars(soak.load), "beside": vars(soak.beside),
        "faults": soak.told.figures(), "log": log,
        "replacements": soak.replacements, "memory": soak.samples, "left": rest,
        "exit": status,
    }  # fmt: skip
    parsed: Data = json.loads(json.dumps(data))
    return parsed


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=1800.0, help="of load [1800]")
    parser.add_argument("--peak", type=float, help="requests a second, instead of searching for it")
    parser.add_argument(
        "--budget", type=float, default=10.0, help="seconds to measure batch times before; 0: none [10]"
    )
    parser.add_argument("--rehearse", type=int, default=40, help="reloads before, and 10 x as many other faults [40]")
    parser.add_argument("--seed", type=int, default=0, help="of the requests and the faults [0]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    if chosen.seconds < 5 or (chosen.peak is not None and chosen.peak <= 0):
        parser.error("--seconds: expected at least 5; --peak: more than 0")


def trend_of(data: Data) -> Trend | None:
    return trend(data["memory"]["at_s"], data["memory"]["mib"], data["settings"]["settle_s"])


def answered_wrongly(data: Data, kind: str) -> int:
    return sum(many for what, many in data["faults"]["wrong"].items() if what.startswith(f"{kind}:"))


def missed(data: Data) -> list[str]:
    """What a soak must not show."""
    found = []
    for name in ("load", "beside"):
        load = data[name]
        lost = load["requests"] - load["completed"]
        if lost:
            kinds = ", ".join(f"{count} x {kind}" for kind, count in load["errors"].items())
            found.append(f"{name}: {lost} of {load['requests']} requests without a right answer: {kinds}")
    found += [f"{count} x {what}" for what, count in data["faults"]["wrong"].items()]
    found += [f"a replica ended with {one['exit']}" for one in data["replacements"] if one["exit"] != 0]
    if data["exit"] != 0:
        found.append(f"the steady server ended with {data['exit']}")
    found += [f"{name} is {value:g} when all is answered" for name, value in data["left"].items() if value]
    log = data["log"]
    if log["counted"] != log["told"]:
        found.append(f"{log['counted']:,} lines of the log were lost, and the log says {log['told']:,}")
    line = trend_of(data)
    if line is not None and not line.flat:
        found.append(f"memory grows by {line.per_hour:.2f} MiB an hour ({line.low:.2f} to {line.high:.2f})")
    return found


def draw(data: Data, folder: Path) -> None:
    """Memory and latency over time."""
    from loadtest.common import plots

    memory, line = data["memory"], trend_of(data)
    with plots.saved_grid(folder / "soak.png", 2, 1, (9, 6), sharex=True) as (figure, grid):
        upper, lower = grid[0, 0], grid[1, 0]
        upper.plot(memory["at_s"], memory["mib"], color="C0", linewidth=1)
        if line is not None:
            ends = [data["settings"]["settle_s"], memory["at_s"][-1]]
            upper.plot(ends, [line.first, line.last], color="k", linestyle="--", linewidth=1)
        upper.set_ylabel("resident memory, MiB")
        stretches = data["load"]["stretches"]
        for name, colour in (("p50", "C2"), ("p99", "C1"), ("max", "0.6")):
            lower.plot([one["at_s"] for one in stretches], [one[name] for one in stretches], color=colour, label=name)
        lower.set_yscale("log")
        plots.plain_numbers(lower.yaxis)
        lower.set_ylabel("latency, ms")
        lower.set_xlabel("seconds")
        lower.legend(loc="upper right", ncols=3, fontsize=10)
        figure.tight_layout()


PAGE = Page("soak", __name__, missed, draw)
EXPERIMENT = Experiment(PAGE, "loadtest.soak", __doc__, measure, options, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
