"""Compares the policies over HTTP: `python -m experiments.policies.live`. Writes docs/bench/policies-live.md.

For each model it measures the batch times and then the server's own peak. At 30 and 70 % of the peak every policy gets
the same arrivals of the same seeds, one policy after another within each seed, so that a change of the machine's speed
affects all of them. All policies have the same device, `--at-once` units. `window` is run with two delays: the one of
five that serves the most rows a second, and for each load the one with the least mean latency, found by simulation on
the measured batch times. The statistics are in live_statistics.py.

The last part is a control: a convolutional network for which batches gain nothing on a CPU. Its device time per row
under `adaptive` is compared with that of batches of one row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from app.bench.plan import Plan
from app.bench.run import Session, in_loop
from app.bench.stats import Repeat
from app.machine import cpu_cores
from app.scheduler.estimates import profile as profiles
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.policies.ebird import Ebird
from app.sim.device import Device
from experiments.common import simulated
from experiments.common.live import peak_rate
from experiments.common.simulated import Policy, serve, stepped
from experiments.policies import live_page as page
from experiments.policies import live_statistics as statistics
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import table
from loadtest.common.paths import LOOPBACK, ROOT, ZOO
from loadtest.common.servers import Server, starling

MODELS = ("mlp", "encoder")
SHARES = (0.3, 0.7)  # of the peak
DELAYS_MS = (1, 2, 5, 10, 20)  # of which one serves the most rows
#: The delays that are simulated to find the one with the least mean latency, with how many seeds and requests.
SIMULATED_DELAYS_MS = (0.1, 0.2, 0.5, 1, 2, 3, 5, 7, 10, 15, 20, 30, 50)
SIMULATED_SEEDS, SIMULATED_REQUESTS = 4, 10_000
CONTROL = "cnn"  # not resnet18, whose 47 MB of weights make two rows cheaper than one (docs/bench/profiles)
SLO_MS = 200.0
TRY_S = 5.0  # of each rate tried for the peak
IN_FLIGHT = 64  # while the delay of `window` is chosen
LARGEST = 32  # rows
LAST = "preferred"  # comes last in each seed, because it may leave the longest queue
LOST = 3  # seeds with a mean beyond SLO_MS, after which a policy is given up at that load
TIMEOUT_S = 60.0  # of a request: long enough to drain the queue of an overloaded run

#: Seconds for the estimate: to start a server, to find a peak, between runs, to warm up one policy at one load, to
#: simulate the delays of `window` at one load.
_START_S, _PEAK_S, _BETWEEN_S, _WARM_S, _SIMULATE_S = 5.0, 80.0, 0.8, 2.5, 10.0


def window_flags(at_once: int, delay_ms: float) -> tuple[str, ...]:
    return ("--policy", "window", "--max-delay-ms", f"{delay_ms:g}", "--workers", ",".join([str(LARGEST)] * at_once))


def contenders(at_once: int, bound: int, delay_ms: float) -> dict[str, tuple[str, ...]]:
    """The server flags of each policy, so that each runs `at_once` units at once.

    `ebird` has its own list of workers, of which the engine runs `bound` (cores // threads); no flag changes that. If
    its device would be another one, it is left out.
    """
    workers = ("--workers", ",".join([str(LARGEST)] * at_once))
    found = {
        "adaptive": ("--policy", "adaptive", *workers),
        "no_wait": ("--policy", "no_wait", *workers),
        f"window, {delay_ms:g} ms": window_flags(at_once, delay_ms),
        "preferred": ("--policy", "preferred", *workers),
    }
    if at_once == min(bound, len(Ebird.workers(LARGEST))):
        found["ebird"] = ("--policy", "ebird")
    return found


def least_mean_ms(profile: ModelProfile, at_once: int, rate: float) -> float:
    """The delay of `window` with the least mean latency at this rate, simulated on the measured batch times."""
    arrivals = [stepped([(SIMULATED_REQUESTS, rate)], seed) for seed in range(SIMULATED_SEEDS)]

    def mean(delay_ms: float) -> float:
        server = simulated.Server(Policy("window", delay_ms), profile, (LARGEST,) * at_once, at_once)
        means = [serve(server, instants, Device(profile, at_once)).latency_ms.mean() for instants in arrivals]
        return float(np.mean(means))

    return min(SIMULATED_DELAYS_MS, key=mean)


def order(names: Sequence[str], index: int) -> list[str]:
    """The order of the policies at seed `index`: another one is first each time, LAST is last."""
    turning = [name for name in names if name != LAST]
    turn = index % len(turning)
    return [*turning[turn:], *turning[:turn], *(name for name in names if name == LAST)]


def lost(repeats: Sequence[Repeat]) -> bool:
    """Whether a policy was overloaded so often that it is given up; draining its queue takes long."""
    return sum(statistics.mean_ms(one) > SLO_MS for one in repeats) >= LOST


class ModelRun:
    """One model with a server for each policy; all run at once, and only one is asked at a time."""

    def __init__(self, source: Path, chosen: argparse.Namespace, folder: str, say: Callable[[str], None]) -> None:
        self.model = source.name
        self.source = f"{self.model}={source}"
        self.chosen = chosen
        self.folder = folder
        self.say = say

    def serve(self, *flags: str) -> Server:
        return starling(
            ("--model", self.source, "--max-batch", str(LARGEST), "--threads", str(self.chosen.threads),
             "--profile-dir", self.folder, "--profile-budget-s", "0", *flags)
        )  # fmt: skip

    def plan(self, server: Server, **options: Any) -> Plan:
        return Plan(
            url=f"http://{LOOPBACK}:{server.port}", model=self.model, payload="binary", seed=self.chosen.seed,
            duration_s=self.chosen.seconds, repeats=self.chosen.repeats, max_lag_ms=self.chosen.max_lag_ms,
            timeout_s=TIMEOUT_S, **options,
        )  # fmt: skip

    def profile(self, at_once: int) -> ModelProfile:
        """Measure batch times into the folder where the servers look for them."""
        ran = command.starling(
            "profile", self.model, "--model", self.source, "--max-batch", str(LARGEST), "--threads",
            str(self.chosen.threads), "--workers", str(at_once), "--budget-s", str(self.chosen.budget), "--no-suggest",
            "--json", profile_dir=Path(self.folder),
        )  # fmt: skip
        return profiles.parse(ran.cell)

    def peak(self, server: Server) -> float:
        return peak_rate(self.plan(server), SLO_MS, TRY_S, lambda text: self.say(f"{self.model}: {text}"))

    def most_rows_ms(self) -> float:
        """The delay of `window` that serves the most rows a second with IN_FLIGHT requests in flight."""
        rows: dict[float, float] = {}
        for delay in DELAYS_MS:
            with self.serve(*window_flags(self.chosen.at_once, delay)) as server:
                server.wait_ready()
                ran = in_loop(_once(self.plan(server, concurrency=IN_FLIGHT)))
            rows[delay] = len(ran.completed) / ran.elapsed_s
            self.say(
                f"{self.model}: window of {delay} ms: {rows[delay]:.0f} rows/s, {statistics.busy([ran]):.2f} units at "
                f"once in {statistics.rows_a_batch([ran]):.1f} rows a batch"
            )
        return max(rows, key=lambda delay: rows[delay])

    def run(self, profile: ModelProfile, found: Data) -> None:
        """Run both loads and add the results to `found`."""
        tuned_ms = self.most_rows_ms()
        flags = contenders(self.chosen.at_once, self.chosen.bound, tuned_ms)
        with ExitStack() as stack:
            servers = {name: stack.enter_context(self.serve(*given)) for name, given in flags.items()}
            for server in servers.values():
                server.wait_ready()
            found["peaks"][self.model] = self.peak(servers["adaptive"])
            for share in SHARES:
                rate = share * found["peaks"][self.model]
                least_ms = least_mean_ms(profile, self.chosen.at_once, rate)
                self.say(f"{self.model}: {share:.0%}: the least mean of window is simulated with {least_ms:g} ms")
                with ExitStack() as only_here:
                    beside = dict(servers)
                    if least_ms != tuned_ms:
                        server = self.serve(*window_flags(self.chosen.at_once, least_ms))
                        beside[f"window, {least_ms:g} ms, least mean"] = only_here.enter_context(server)
                        server.wait_ready()
                    self.one_load(beside, share, rate, found)

    def one_load(self, servers: Mapping[str, Server], share: float, rate: float, found: Data) -> None:
        runs = in_loop(self.alternate(servers, rate))
        cells = statistics.compare(self.model, share, rate, runs)
        found["cells"] += cells
        found["tails"].append(statistics.tail(self.model, share, runs))
        for line in [*table(page.COLUMNS, cells).splitlines(), *page.verdicts(cells, found["tails"][-1:])]:
            self.say(line)

    async def alternate(self, servers: Mapping[str, Server], rate: float) -> dict[str, list[Repeat]]:
        """Run all policies at each seed before the next seed."""
        runs: dict[str, list[Repeat]] = {name: [] for name in servers}
        async with AsyncExitStack() as stack:
            sessions = {}
            for name, server in servers.items():
                sessions[name] = await stack.enter_async_context(Session(self.plan(server, rate=rate)))
                await sessions[name].warm()
                await sessions[name].settle()
            for index in range(self.chosen.repeats):
                for name in order(list(servers), index):
                    if lost(runs[name]):
                        continue
                    session = sessions[name]
                    runs[name].append(await session.once(session.plan, session.plan.seed + index, self.chosen.seconds))
                    await (
                        session.settle()
                    )  # `once` has waited for all answers, so nothing is queued behind this request
        return runs


async def _once(plan: Plan) -> Repeat:
    async with Session(plan) as session:
        await session.warm()
        return await session.once(plan, plan.seed, plan.duration_s)


def halved(chosen: argparse.Namespace) -> argparse.Namespace:
    """Options with twice as many seeds of half the length, so that the machine drifts less between two runs."""
    return argparse.Namespace(**{**vars(chosen), "repeats": 2 * chosen.repeats, "seconds": chosen.seconds / 2})


def control(chosen: argparse.Namespace, folder: str, say: Callable[[str], None]) -> Data:
    """Device time per row of `adaptive` and of batches of one row in turns, at 30 % of the latter's peak."""
    chosen = halved(chosen)
    model_run = ModelRun(ROOT / "loadtest" / "bench" / "models" / CONTROL, chosen, folder, say)
    per_row = {size: ns / size / 1e6 for size, ns in enumerate(model_run.profile(1).batch_ns, 1)}
    alone = ("--workers", str(LARGEST))
    with (
        model_run.serve("--policy", "adaptive", *alone) as adaptive,
        model_run.serve("--max-batch", "1", *alone) as single,
    ):
        for server in (adaptive, single):
            server.wait_ready()
        most = model_run.peak(single)
        runs = in_loop(model_run.alternate({"adaptive": adaptive, "batch 1": single}, SHARES[0] * most))
    return statistics.control(CONTROL, most, SHARES[0] * most, runs, per_row)


def estimate_s(chosen: argparse.Namespace) -> float:
    """An upper estimate of the time of the whole command: as if no policy were given up."""

    def load_s(chosen: argparse.Namespace) -> float:
        return float(chosen.repeats * (chosen.seconds + _BETWEEN_S) + _WARM_S)

    alone_s = chosen.budget + _START_S + _PEAK_S
    contest_s = len(SHARES) * load_s(chosen) + _START_S
    model_s = alone_s + len(DELAYS_MS) * (_START_S + _WARM_S + chosen.seconds)
    # one more: `window` with the delay of the least mean, whose simulation takes a while at each load
    model_s += (len(contenders(chosen.at_once, chosen.bound, 0)) + 1) * contest_s + len(SHARES) * _SIMULATE_S
    control_s = 0.0 if chosen.no_control else alone_s + 2 * (_START_S + load_s(halved(chosen)))
    return float(len(chosen.models) * model_s + control_s)


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="*", default=list(MODELS), help=f"[{' '.join(MODELS)}]")
    parser.add_argument("--seconds", type=float, default=7.0, help="length of a run [7]")
    parser.add_argument("--repeats", type=int, default=8, help="seeds at each load [8]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a unit [1]")
    parser.add_argument("--at-once", type=int, help="units at once, of every policy [cores // threads]")
    parser.add_argument("--budget", type=float, default=50.0, help="seconds to measure batch times [50]")
    parser.add_argument("--max-lag-ms", type=float, default=2.0, help="of the load generator itself, at the peak [2]")
    parser.add_argument("--no-control", action="store_true", help=f"leave out {CONTROL}")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    """Add `cores` and `bound`, the units at once that cores and threads allow. Exits if the options are invalid."""
    chosen.cores = cpu_cores()
    if not 1 <= chosen.threads <= chosen.cores:
        parser.error(f"--threads: expected 1 to {chosen.cores}, the cores, got {chosen.threads}")
    chosen.bound = chosen.cores // chosen.threads
    chosen.at_once = chosen.bound if chosen.at_once is None else chosen.at_once
    if not 1 <= chosen.at_once <= chosen.bound:
        parser.error(f"--at-once: expected 1 to {chosen.bound}, cores over threads, got {chosen.at_once}")


def settings_of(chosen: argparse.Namespace) -> Data:
    """The options of a run. `bound`: units at once that cores and threads allow."""
    return {
        "at_once": chosen.at_once, "threads": chosen.threads, "cores": chosen.cores, "bound": chosen.bound,
        "repeats": chosen.repeats, "seconds": chosen.seconds, "slo_ms": SLO_MS, "lost": LOST, "delays_ms": DELAYS_MS,
        "least_mean": True, "block_s": statistics.BLOCK_S, "draws": statistics.DRAWS,
    }  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    run.say(f"takes about {estimate_s(chosen) / 60:.0f} minutes")
    found: Data = {"settings": settings_of(chosen), "peaks": {}, "cells": [], "tails": [], "control": None}
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        for model in chosen.models:
            model_run = ModelRun(ZOO / model, chosen, folder, run.say)
            model_run.run(model_run.profile(chosen.at_once), found)
        run.keep(found)  # so that half an hour's work is not lost if the control fails
        if not chosen.no_control:
            found["control"] = control(chosen, folder, run.say)
            run.say(page.control_text(found["control"]))
    return found


EXPERIMENT = Experiment(
    page.PAGE,
    "experiments.policies.live",
    __doc__,
    measure,
    options_of,
    check,
    stored_as=lambda chosen: page.name_of(settings_of(chosen)),
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
