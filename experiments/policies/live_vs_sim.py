"""Compares simulated with live latencies of one model: `python -m experiments.policies.live_vs_sim`.

It profiles the model, then finds the server's own peak (the largest rate whose 99th percentile stays within 200 ms). At
30 and 60 % of the peak the load generator and the simulator get the same arrivals. The server's own times
(Server-Timing) are compared with the simulated latencies; the rest of the client's latency, HTTP and both event loops,
is shown separately. Then the same with a model that sleeps, as a control: a device whose speed does not drift. Writes
docs/bench/live-vs-sim.md, .json and a plot.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.bench.plan import Plan
from app.bench.run import Result, in_loop, measure
from app.scheduler.estimates.profile import ModelProfile
from app.sim import options
from app.sim.fleet import Setup
from app.sim.report import Tally, summary
from app.sim.simulator import Simulator
from experiments.common.live import OtherProcesses, peak_rate
from experiments.policies import live_vs_sim_page as page
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import Server, clean_environment, starling

SHARES = (0.3, 0.6)  # of the peak
SLO_MS = 200.0
TRY_S = 5.0  # of each rate tried for the peak
DRIFT_S = 20  # of one row back to back, for how steady the machine is
CONTROL = {"model": "sleep", "models": str(Path("loadtest", "bench", "models")), "seconds": 5.0, "budget": 6.0}
QUANTILES = tuple(np.linspace(0.01, 0.99, 99).tolist())


def simulate(setup: Setup, counts: Sequence[int]) -> tuple[Tally, list[float]]:
    """Simulate one run for each count of requests, with the next seed each; returns the sum and its quantiles in ms."""
    whole = Tally()
    for index, count in enumerate(counts):
        seeded = replace(setup, seed=setup.seed + index, requests=count)
        tally = Tally()
        simulator = Simulator([seeded.node(0)], tally)
        for chunk in seeded.instants():
            simulator.feed(chunk.tolist())
        simulator.drain()
        whole.add(tally)
    return whole, [(whole.percentile(share) or 0.0) / 1e6 for share in QUANTILES]


def scheduled(live: Result) -> NDArray[np.int64]:
    """Nanoseconds from arrival until the batch's end is reported, per request: what the simulator computes."""
    parts = [repeat.queue_ns + repeat.compute_ns for repeat in live.repeats]
    known = [repeat.queue_ns >= 0 for repeat in live.repeats]
    return np.concatenate([part[right] for part, right in zip(parts, known, strict=True)])


def drift_of(live: Result, profile: ModelProfile) -> float:
    """The time of all batches of the run over the profiled time of batches of the same sizes."""
    ran = profiled = 0.0
    for repeat in live.repeats:
        right = repeat.batch > 0
        batch, compute = repeat.batch[right], repeat.compute_ns[right]
        ran += float((compute / batch).sum())  # each of b requests reports the whole batch
        profiled += float((np.asarray(profile.batch_ns)[batch - 1] / batch).sum())
    return ran / profiled


def compare(share: float, live: Result, tally: Tally, drifted: Tally, profile: ModelProfile) -> page.Row:
    """One row of the table. Batch times are means over requests, of the batch that each request was in."""
    figures = live.figures
    assert live.plan.rate is not None
    server = scheduled(live)
    batches = np.concatenate([repeat.batch[repeat.batch > 0] for repeat in live.repeats])
    simulated = summary(tally)
    return {
        "share": share, "rate": live.plan.rate, "requests": len(server),
        "client_ms": _known(figures["mean_ms"]), "server_ms": float(server.mean()) / 1e6,
        "simulated_ms": simulated["mean_ms"], "server_p99_ms": float(np.quantile(server, 0.99)) / 1e6,
        "simulated_p99_ms": simulated["p99_ms"], "batch": _known(figures["mean_batch"]),
        "simulated_batch": simulated["mean_batch"], "compute_ms": _known(figures["compute_ms"]),
        "profiled_ms": float(np.mean(np.asarray(profile.batch_ns)[batches - 1])) / 1e6,
        "drift": drift_of(live, profile), "drifted_ms": summary(drifted)["mean_ms"], "others": None,
        "handover_ms": None, "profiled_handover_ms": (profile.handover_ns or 0) / 1e6,
    }  # fmt: skip


def handover_ms(server: Server, model: str) -> float:
    """What a batch costs the server beyond computing, as it has learnt it until now."""
    _, _, body = server.call("GET", f"/v2/models/{model}/stats")
    found = json.loads(body)["model_stats"][0]["starling"]["handover_ms"]
    assert isinstance(found, float)
    return found


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("the server did not say its times: Server-Timing is missing")
    return value


@dataclass(frozen=True)
class Comparison:
    """One model, live and simulated. Server and simulator use the same profile, stored in `folder`."""

    chosen: argparse.Namespace
    folder: Path
    say: Callable[[str], None]

    def profile(self) -> ModelProfile:
        """Measure batch times and the hand-over with the server's settings."""
        self.say(f"profiling {self.chosen.model}")
        path = self.folder / "profile.json"
        command.starling(
            "profile", self.chosen.model, "--models", self.chosen.models, "--max-batch", "32", "--threads",
            str(self.chosen.threads), "--budget-s", str(self.chosen.budget), "--no-suggest", "--out", str(path),
            profile_dir=self.folder,
        )  # fmt: skip
        return options.profile(str(path))

    def measure(self) -> Data:
        """Find the server's peak, then run the loads live and simulated."""
        chosen = self.chosen
        self.profile()
        flags = (
            "--models", chosen.models, "--max-batch", "32", "--threads", str(chosen.threads), "--policy",
            chosen.policy, "--profile-dir", str(self.folder),
        )  # fmt: skip
        with starling(flags) as server:
            server.wait_ready()
            plan = Plan(
                url=f"http://{LOOPBACK}:{server.port}", model=chosen.model, payload="binary", rate=None,
                duration_s=chosen.seconds, repeats=chosen.repeats, seed=chosen.seed,
            )  # fmt: skip
            peak = peak_rate(plan, SLO_MS, TRY_S, self.say)
            found: Data = {"peak": peak, "rows": [], "curves": [], "profiles": []}
            for share in SHARES:
                profile = self.profile()  # again, because the speed of a machine drifts within minutes
                row, curve = self.one_load(share, replace(plan, rate=share * peak), server, profile)
                found["rows"].append(row)
                found["curves"].append(curve)
                found["profiles"].append(profile.to_dict())
        return found

    def one_load(self, share: float, plan: Plan, server: Server, profile: ModelProfile) -> tuple[page.Row, page.Curve]:
        """The row of one load, and its quantiles live and simulated in ms."""
        self.say(f"{share:.0%} of the peak: {plan.rate:.0f}/s")
        others = OtherProcesses([server])
        live = in_loop(measure(plan))
        cores = others.cores()
        setup = Setup(profile, plan.rate, self.chosen.policy, seed=plan.seed).solved()
        counts = [len(repeat.intended_ns) for repeat in live.repeats]
        tally, quantiles = simulate(setup, counts)
        drift = drift_of(live, profile)
        slower = replace(profile, batch_ns=tuple(round(time * drift) for time in profile.batch_ns))
        drifted, _ = simulate(replace(setup, profile=slower), counts)
        row = compare(share, live, tally, drifted, profile)
        row["others"], row["handover_ms"] = cores, handover_ms(server, plan.model)
        live_ms = (np.quantile(scheduled(live), QUANTILES) / 1e6).tolist()
        return row, {"share": share, "live_ms": live_ms, "simulated_ms": quantiles}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", default="mlp", help="[mlp]")
    parser.add_argument("--models", default="bench", help="the server's --models [bench]")
    parser.add_argument("--policy", default="adaptive", help="[adaptive]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the server [1]")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a run [20]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each rate, with a seed each [3]")
    parser.add_argument("--seed", type=int, default=0, help="of the first run [0]")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds to measure batch times [60]")
    parser.add_argument("--no-control", action="store_true", help="leave out the model that sleeps, and the drift")


def drift_ms() -> list[float]:
    """Medians of each second of one row of `mlp` run back to back, with nothing else running."""
    command = [sys.executable, "-m", "experiments.policies.drift", "--seconds", str(DRIFT_S)]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=clean_environment())
    return [float(word) for word in ran.stdout.splitlines()[0].split()]


def compared(chosen: argparse.Namespace, run: Run) -> Data:
    """One model, and how it was compared."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        found = Comparison(chosen, Path(folder), run.say).measure()
    settings = {name: getattr(chosen, name) for name in ("model", "policy", "threads", "seconds", "repeats", "seed")}
    return {"settings": {**settings, "slo_ms": SLO_MS}, **found}


def measure_all(chosen: argparse.Namespace, run: Run) -> Data:
    alone = chosen.no_control or chosen.model == CONTROL["model"]
    drift = {} if alone else {"drift_ms": drift_ms()}
    found = compared(chosen, run)
    control = {} if alone else {"control": compared(argparse.Namespace(**{**vars(chosen), **CONTROL}), run)}
    return {**found, **control, **drift}


EXPERIMENT = Experiment(page.PAGE, "experiments.policies.live_vs_sim", __doc__, measure_all, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
