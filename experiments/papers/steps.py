"""Ebird's Figures 2 and 8 with real servers and in the simulator: `python -m experiments.papers.steps`.

In Figure 2 the rate rises every 150 requests; in Figure 8 it is low for 150 requests and high for 250. Rates are shares
of each model's own peak. A model's batch times are measured first. Then each policy's server gets the requests over
HTTP, and the simulator gets the same requests at the same instants with the measured batch times. Every policy has the
same number of units at once. Writes docs/bench/steps.md, .json and a plot for each model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from app.machine import cpu_cores
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.policies import POLICIES
from experiments.common.simulated import Policy, Server
from experiments.papers import steps_page
from experiments.papers.schedules import SCHEDULES
from experiments.papers.steps_runs import WARM_S, Say, capacities, compare, measured, planned_run, simulated
from loadtest.common.experiment import Data, Experiment, Run

MODELS = ("mlp", "resnet18", "encoder")  # the slowest comes last and gets the time that the others leave
SLO_MS = 200.0  # bound of the 99th percentile at the peak: the papers' QoS
CHOSEN = ("no_wait", "window", "ebird", "adaptive")


def seeds_within(asked: int, each_s: float, left_s: float) -> int:
    """As many seeds as the time allows, at least one and at most those asked for."""
    return max(1, min(asked, int(left_s / each_s)))


def server_of(policy: str, chosen: argparse.Namespace, profile: ModelProfile, tables: ControlTables | None) -> Server:
    """The simulated server. Its profile ends with the largest batch that its workers can run, as in a real server."""
    workers = capacities(policy, chosen.at_once)
    return Server(Policy(policy, chosen.delay), profile.up_to(max(workers)), workers, chosen.at_once, 0, tables)


def study(model: str, chosen: argparse.Namespace, rate: float | None, left_s: float, say: Say) -> dict[str, Any]:
    """One model, within `left_s` but with at least one seed. Raises the errors of servers, commands and the client."""
    from experiments.papers.steps_live import LiveServers  # loads torch

    began_s = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="starling-bench-") as folder,
        LiveServers(model, chosen, Path(folder)) as servers,
    ):
        say(f"measuring batch times, {chosen.budget:g} s")
        profile, tables = servers.profile()
        say(f"profile: one row {profile.batch_ns[0] / 1e6:.2f} ms, best {profile.peak:.0f} rows/s alone")
        servers.start()
        peak = servers.peak(SLO_MS, say) if rate is None else rate
        each_s = len(chosen.policies) * sum(planned_run(one, peak, 0).seconds for one in SCHEDULES)
        left_s -= time.monotonic() - began_s
        count = seeds_within(chosen.seeds, each_s, left_s)
        beyond = f", more than the {max(0, left_s):.0f} s left" if each_s > left_s else ""
        say(f"peak {peak:.0f}/s; {count} of {chosen.seeds} seeds, {each_s:.0f} s each: {count * each_s:.0f} s{beyond}")
        plans = [{one.name: planned_run(one, peak, seed) for one in SCHEDULES} for seed in range(count)]
        repeats = servers.run(plans, say)
    found: dict[str, Any] = {
        "model": model, "peak": peak, "given": rate is not None, "seeds": count, "asked": chosen.seeds,
        "batch_ms": {str(size): profile.batch_ns[size - 1] / 1e6 for size in (1, 2, 4, 8, 16, 32)},
        "together": {str(units): profile.times(units)[-1] / profile.batch_ns[-1] for units in profile.concurrency_ns},
        "profile": profile.to_dict(),
    }  # fmt: skip
    for one in SCHEDULES:
        planned = [runs[one.name] for runs in plans]
        found[one.name] = {}
        for policy in chosen.policies:
            server = server_of(policy, chosen, profile, tables)
            live = [measured(*pair, profile) for pair in zip(repeats[one.name, policy], planned, strict=True)]
            found[one.name][policy] = compare(planned, live, [simulated(server, each) for each in planned])
    return found


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=list(MODELS), help=f"of app/models/zoo [{' '.join(MODELS)}]")
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(CHOSEN), metavar="POLICY",
                        help=f"[{' '.join(CHOSEN)}]")  # fmt: skip
    parser.add_argument("--seeds", type=int, default=5, help="runs of each experiment, as far as time allows [5]")
    parser.add_argument("--minutes", type=float, default=8.0, help="for all; fewer seeds are run to keep it [8]")
    parser.add_argument("--rate", type=float, nargs="*", default=[], help="peaks of the models, which are then given")
    parser.add_argument("--delay", type=float, default=5.0, help="of window, static and preferred, ms [5]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a unit [1]")
    parser.add_argument("--at-once", type=int, default=0, help="units at once, for every policy [cores / threads]")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds to measure a model's batch times [20]")
    parser.add_argument("--max-lag-ms", type=float, default=5.0, help="of the load generator, near the peak [5]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    fit = cpu_cores() // max(1, chosen.threads)
    chosen.at_once = chosen.at_once or fit
    if chosen.rate and len(chosen.rate) != len(chosen.models):
        parser.error(f"rate: expected one for each of {len(chosen.models)} models, got {len(chosen.rate)}")
    if not chosen.rate and "adaptive" not in chosen.policies:
        parser.error("policies: expected adaptive, whose peak is measured, or a --rate for each model")
    if not 1 <= chosen.at_once <= fit or ("ebird" in chosen.policies and chosen.at_once != fit):
        exact = f"{fit}, as many as ebird then has" if "ebird" in chosen.policies else f"1 to {fit}"
        parser.error(
            f"at_once: expected {exact} ({cpu_cores()} cores by {chosen.threads} threads), got {chosen.at_once}"
        )
    if chosen.seeds < 1:
        parser.error(f"seeds: expected at least 1, got {chosen.seeds}")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    began_s = time.monotonic()
    settings = {
        "at_once": chosen.at_once, "threads": chosen.threads, "cores": cpu_cores(), "delay_ms": chosen.delay,
        "given": bool(chosen.rate), "slo_ms": SLO_MS, "warm_s": WARM_S,
    }  # fmt: skip
    studies = []
    for place, model in enumerate(chosen.models):
        left_s = (began_s + 60 * chosen.minutes - time.monotonic()) / (len(chosen.models) - place)
        rate = chosen.rate[place] if chosen.rate else None
        studies.append(study(model, chosen, rate, left_s, lambda text, model=model: run.say(f"{model}: {text}")))
    schedules = [{"name": one.name, "steps": one.steps} for one in SCHEDULES]
    return {"settings": settings, "schedules": schedules, "studies": studies}


EXPERIMENT = Experiment(steps_page.PAGE, "experiments.papers.steps", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
