"""Serves two workers of one model over HTTP while the rate climbs and bursts: `python -m experiments.many steps`.

Ebird's Figure 2 (the rate rises every 150 requests, to the peak) and Figure 8 (150 requests at a low rate, 250 at a
high one), here in time: each step is as long as that many requests take on average. A model is profiled first, as users
are told to. Then all policies have a server of two workers of one thread each, all run at once, and one is asked at a
time: every seed's arrivals go to each of them in turn, so that what the machine does meanwhile happens to all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean

import numpy as np

from app.engine.profiling.tables import tables_of
from experiments.common.live import in_turns, peak_rate, right, serving
from loadtest.common import command
from loadtest.common.experiment import Data, Say
from loadtest.common.page import standard_error
from loadtest.common.paths import ZOO
from loadtest.common.servers import Server
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import in_loop
from loadtest.generator.stats import Repeat
from planner import option_values

MODELS = ("mlp", "encoder")
SEEDS = 7
WORKERS, LARGEST = 2, 32  # and rows of a batch at most
DELAYS_MS = (1, 2, 5)  # of `window`; the best of the tuning runs counts
TUNING = 2  # climbs of each delay
BUDGET_S = 20.0  # to measure a model's batch times
SLO_MS, TRY_S = 200.0, 3.0  # the peak is the largest rate with 99 % within it; each rate is tried so long
WARM_S = 2.0  # at the first rate of a run, left out
WITHIN = 1.02  # times the best of the others, at most
RIVALS = ("no_wait", "window", "ebird")
LAG_MS = 5.0  # accepted of the load generator: it shares the cores
Steps = Sequence[tuple[int, float]]  # requests, and the rate as a share of the peak
SCHEDULES: dict[str, Steps] = {
    "climb": [(150, share) for share in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0)],
    "burst": [(150, 0.3), (250, 0.9)],
}


def server_flags(policy: str) -> tuple[str, ...]:
    """Of a policy, which for `window` names its delay: `window 2`. `ebird` has its own workers, two of which run."""
    name, _, delay = policy.partition(" ")
    workers = () if name == "ebird" else ("--workers", f"{WORKERS}x{LARGEST}")
    return ("--policy", name, *workers, *(("--max-delay-ms", delay) if delay else ()))


def timed(steps: Steps, peak: float) -> tuple[str, list[float]]:
    """The `arrivals` of a run at the rate `peak`, and when each step begins and the last one ends, in seconds."""
    seconds = [count / (share * peak) for count, share in steps]
    parts = [(steps[0][1], WARM_S), *((share, length) for (_, share), length in zip(steps, seconds, strict=True))]
    text = ",".join(f"{share}x{length:.6f}" for share, length in parts)
    return f"steps:{text}", list(accumulate(seconds, initial=WARM_S))


def means(repeat: Repeat, bounds: Sequence[float]) -> list[float]:
    """The mean latency of each step's requests, in ms."""
    at = np.searchsorted(repeat.intended_ns, np.array(bounds) * 1e9)
    return [float(repeat.latency_ns[low:high].mean()) / 1e6 for low, high in pairwise(at.tolist())]


def runs_of(
    servers: Mapping[str, Server], model: str, steps: Steps, peak: float, seeds: range
) -> dict[str, list[list[float]]]:
    """By policy and seed: the mean of each step."""
    arrivals, bounds = timed(steps, peak)
    plans = {
        policy: replace(
            plan_of(server, model), rate=peak, arrivals=arrivals, duration_s=bounds[-1], seed=seeds.start,
            repeats=len(seeds),
        )
        for policy, server in servers.items()
    }  # fmt: skip
    runs = in_loop(in_turns(plans))
    return {policy: [means(right(policy, run), bounds) for run in given] for policy, given in runs.items()}


def compared(servers: Mapping[str, Server], model: str, peak: float, seeds: int, say: Say) -> Data:
    """The delay that `window` is given, and by schedule and policy the means of all steps by seed."""
    windows = {policy: server for policy, server in servers.items() if policy.startswith("window")}
    tried = runs_of(windows, model, SCHEDULES["climb"], peak, range(seeds, seeds + TUNING))
    window = min(windows, key=lambda policy: fmean(map(fmean, tried[policy])))
    chosen = {policy: server for policy, server in servers.items() if policy not in windows or policy == window}
    found = {}
    for name, steps in SCHEDULES.items():
        runs = runs_of(chosen, model, steps, peak, range(seeds))
        found[name] = {policy.partition(" ")[0]: by_seed for policy, by_seed in runs.items()}
        shown = {policy: [round(fmean(step), 1) for step in zip(*one, strict=True)] for policy, one in runs.items()}
        say(f"{model}, {name}: {shown}")
    return {"delay_ms": float(window.partition(" ")[2]), "schedules": found}


def plan_of(server: Server, model: str) -> BenchPlan:
    return BenchPlan(
        url=server.url, model=model, payload="binary", warmup_s=1.0, connections=512, timeout_s=60.0,
        max_lag_ms=LAG_MS,
    )  # fmt: skip


def study(model: str, seeds: int, budget_s: float, say: Say) -> Data:
    """One model. Raises the errors of servers, commands and the load generator."""
    source = f"{model}={ZOO / model}"
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as kept:
        folder = Path(kept)
        command.starling(
            "profile", model, "--model", source, "--max-batch", str(LARGEST), "--threads", "1", "--budget-s",
            str(budget_s), "--out", str(folder / "own.json"), profile_dir=folder,
        )  # fmt: skip
        profile = option_values.profile(str(folder / "own.json"))
        tables_of(profile, WORKERS, folder)  # `adaptive` acts like `no_wait` until its tables are there
        flags = (
            "--model", source, "--threads", "1", "--max-batch", str(LARGEST), "--profile-dir", kept,
            "--profile-budget-s", "0",
        )  # fmt: skip
        policies = ("no_wait", *(f"window {delay}" for delay in DELAYS_MS), "ebird", "adaptive")
        with serving({policy: (*flags, *server_flags(policy)) for policy in policies}) as servers:
            peak = peak_rate(plan_of(servers["adaptive"], model), SLO_MS, TRY_S, say)
            found = compared(servers, model, peak, seeds, say)
    slower = profile.times(WORKERS)[-1] / profile.batch_ns[-1]
    return {"model": model, "peak": peak, "seeds": seeds, "slower": slower, **found}


def measure(say: Say) -> Data:
    """Two workers over HTTP while the rate climbs and bursts."""
    return {"slo_ms": SLO_MS, "steps": SCHEDULES, "studies": [study(model, SEEDS, BUDGET_S, say) for model in MODELS]}


def compared_steps(data: Data) -> Iterator[Data]:
    """Each step of each model. `over`: the mean of `adaptive` over that of the best of the others, and the standard
    error of it, by paired runs."""
    for study in data["studies"]:
        for schedule, parts in data["steps"].items():
            for number, (_, share) in enumerate(parts):
                means = {policy: [run[number] for run in runs] for policy, runs in study["schedules"][schedule].items()}
                best = min((means[policy] for policy in RIVALS), key=fmean)
                more = [own - other for own, other in zip(means["adaptive"], best, strict=True)]
                over = 1 + fmean(more) / fmean(best), standard_error(more) / fmean(best)
                name, rate = f"{schedule}, {share:.0%}", share * study["peak"]
                yield {"study": study, "name": name, "rate": rate, "means_ms": means, "over": over}


def missed(data: Data) -> list[str]:
    return [
        f"{step['study']['model']}, {step['name']}: {over:.2f} ± {error:.2f} times the best of the others"
        for step in compared_steps(data)
        for over, error in [step["over"]]
        if over > WITHIN
    ]
