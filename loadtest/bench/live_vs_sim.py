"""Simulated against live: `python -m loadtest.bench.live_vs_sim` sends one model the very instants it simulates.

The model's batch times are measured first, then the server's own peak (the largest rate whose 99th percentile keeps 200
ms). At 30 and 60 % of it the load generator sends what the simulator is fed with: same arrivals, rate and seeds. What
the server says of each request (Server-Timing: total) stands beside the simulated latency; what the client sees beyond
that, HTTP and both event loops, is shown apart. Writes docs/bench/live-vs-sim.md, .json and a plot.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from app.bench.peak import Peak, Try, find_peak
from app.bench.plan import Plan
from app.bench.run import Lagging, Result, in_loop, measure
from app.scheduler.estimates.profile import ModelProfile
from app.sim import options
from app.sim.fleet import Setup
from app.sim.report import Tally, summary
from app.sim.simulator import Simulator

from . import machine
from .load import LOOPBACK, ROOT
from .servers import Server, ServerError, starling
from .simulation import command, section

matplotlib.use("Agg")

DOCS = ROOT / "docs" / "bench"
SHARES = (0.3, 0.6)  # of the peak
SLO_MS = 200.0
WITHIN = 0.15  # of the live mean
QUANTILES = tuple(np.linspace(0.01, 0.99, 99).tolist())

TEXT = """\
# Simulated against live

`{model}` under the same arrivals, live and simulated: the very same instants of {repeats} seeds, {seconds:g} s each, at
{shares} of the server's own peak, {peak:.0f} requests/s (99th percentile within {slo:g} ms). The simulator knows the
batch times that `starling profile` measured just before each load, and nothing else of the server. Means in ms: "live"
is from arrival to the end of the batch (Server-Timing, queue and compute), "HTTP" all that the client sees beyond it:
parsing, encoding, both event loops and the hand-over between threads. "With the live run's batch times": batches that
run now and then, beside a busy event loop, take longer than the same ones back to back; the profile times that factor,
simulated again, shows what is left for the scheduler to explain. "Batch time" is the mean over requests of the batch
that each was in. "Others" are processes that had nothing to do with it.

Most of the difference is taken to be the machine itself, which was not proven for each row. On the two virtual cores
that the committed figures are from, one row of `mlp`, back to back and nothing else running, takes 4.5 to 6.0 ms as the
seconds go (`python -m loadtest.bench.drift`, medians of a second); a slower device at the same rate is a device at a
higher load, and queues grow faster than batch times, the more so where slow and fast seconds alternate. The control is
a model that sleeps 4 + 0.65 ms a row and needs no processor, everything else the same (`python -m
loadtest.bench.live_vs_sim --model sleep --models loadtest/bench/models --seconds 5 --budget 6 --out out`): simulated
8.86 against live 9.32 ms at 30 % (-5.0 %), 12.52 against 13.62 ms at 60 % (-8.0 %). What remains there is the hand-over
of each batch from one thread to another and back, 0.6 to 0.75 ms for `mlp` (`starling_worker_busy_seconds_total` less
`starling_compute_duration_seconds`, by batch), which the profile leaves out.
"""


@dataclass(frozen=True)
class Row:
    """One load, live and simulated; times in ms."""

    share: float
    rate: float
    requests: int
    client_ms: float
    server_ms: float
    simulated_ms: float
    server_p99_ms: float
    simulated_p99_ms: float
    batch: float
    simulated_batch: float
    compute_ms: float
    profiled_ms: float
    drift: float  # batch times of the live run over those of the profile, at the sizes that ran
    drifted_ms: float  # simulated with the profile times that
    others: float | None = None  # cores that other processes used meanwhile; None where the platform does not tell

    @property
    def off(self) -> float:
        """Simulated over live, less one."""
        return self.simulated_ms / self.server_ms - 1

    def cells(self) -> list[str]:
        return [
            f"{self.share:.0%}", f"{self.rate:.0f}", f"{self.requests}", f"{self.client_ms:.2f}",
            f"{self.client_ms - self.server_ms:.2f}", f"{self.server_ms:.2f}", f"{self.simulated_ms:.2f}",
            f"{self.off:+.1%}", "yes" if abs(self.off) <= WITHIN else "NO",
            f"x {self.drift:.2f}: {self.drifted_ms:.2f} ({self.drifted_ms / self.server_ms - 1:+.1%})",
            f"{self.server_p99_ms:.1f} / {self.simulated_p99_ms:.1f}", f"{self.batch:.2f} / {self.simulated_batch:.2f}",
            f"{self.compute_ms:.2f} / {self.profiled_ms:.2f}", "" if self.others is None else f"{self.others:.2f}",
        ]  # fmt: skip


HEADINGS = (
    "of the peak", "rate/s", "requests", "client", "HTTP", "live", "simulated", "off", "within 15 %",
    "with the live run's batch times",
    "p99, live / sim", "rows a batch, live / sim", "batch time, live / sim", "others, cores",
)  # fmt: skip


def simulate(setup: Setup, counts: Sequence[int]) -> tuple[Tally, list[float]]:
    """The runs of seeds from the setup's on, with so many requests each: together, and their quantiles in ms."""
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
    """Nanoseconds from arrival to the end of the batch, per request: what the simulator simulates."""
    parts = [repeat.queue_ns + repeat.compute_ns for repeat in live.repeats]
    known = [repeat.queue_ns >= 0 for repeat in live.repeats]
    return np.concatenate([part[right] for part, right in zip(parts, known, strict=True)])


def drift_of(live: Result, profile: ModelProfile) -> float:
    """The time of all batches of the run over what the profile says of batches of their sizes."""
    ran = profiled = 0.0
    for repeat in live.repeats:
        right = repeat.batch > 0
        batch, compute = repeat.batch[right], repeat.compute_ns[right]
        ran += float((compute / batch).sum())  # each of b requests reports the whole batch
        profiled += float((np.asarray(profile.batch_ns)[batch - 1] / batch).sum())
    return ran / profiled


def compare(share: float, live: Result, tally: Tally, drifted: Tally, profile: ModelProfile) -> Row:
    """One row; the batch time is the mean over requests of the batch that each was in."""
    figures = live.figures
    assert live.plan.rate is not None
    server = scheduled(live)
    batches = np.concatenate([repeat.batch[repeat.batch > 0] for repeat in live.repeats])
    simulated = summary(tally)
    return Row(
        share, live.plan.rate, len(server), _known(figures["mean_ms"]), float(server.mean()) / 1e6,
        simulated["mean_ms"], float(np.quantile(server, 0.99)) / 1e6, simulated["p99_ms"],
        _known(figures["mean_batch"]), simulated["mean_batch"], _known(figures["compute_ms"]),
        float(np.mean(np.asarray(profile.batch_ns)[batches - 1])) / 1e6, drift_of(live, profile),
        summary(drifted)["mean_ms"],
    )  # fmt: skip


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("the server did not say its times: Server-Timing is missing")
    return value


def profiled(chosen: argparse.Namespace, folder: Path) -> ModelProfile:
    """What `starling profile` measures with the server's settings, kept in `folder` for the server."""
    path = folder / "profile.json"
    command.starling(
        "profile", chosen.model, "--models", chosen.models, "--max-batch", "32", "--threads", str(chosen.threads),
        "--budget-s", str(chosen.budget), "--no-suggest", "--out", str(path),
        profile_dir=folder,
    )  # fmt: skip
    return options.profile(str(path))


def run(chosen: argparse.Namespace, say: Console) -> dict[str, Any]:
    """Measure; the page's figures. Raises what server, client and commands raise."""
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        say.print("measuring batch times")
        return measured(chosen, profiled(chosen, Path(folder)), folder, say)


def measured(chosen: argparse.Namespace, profile: ModelProfile, folder: str, say: Console) -> dict[str, Any]:
    """The server's peak, then the loads live and simulated."""
    flags = (
        "--models", chosen.models, "--max-batch", "32", "--threads", str(chosen.threads), "--policy", chosen.policy,
        "--profile-dir", folder,
    )  # fmt: skip
    with starling(flags) as server:
        server.wait_ready()
        plan = Plan(
            url=f"http://{LOOPBACK}:{server.port}", model=chosen.model, payload="binary", rate=None,
            duration_s=chosen.seconds, repeats=chosen.repeats, seed=chosen.seed,
        )  # fmt: skip
        peak = in_loop(find_peak(replace(plan, duration_s=5, repeats=1), SLO_MS, lambda tried: _told(tried, say)))
        pairs = []
        for share in SHARES:
            profile = profiled(chosen, Path(folder))  # anew: the machine's own speed drifts within minutes
            pairs.append(one_load(share, replace(plan, rate=share * _rate(peak)), server, profile, chosen.policy, say))
    rows, curves = [row for row, _ in pairs], [curve for _, curve in pairs]
    return {
        "peak": _rate(peak), "rows": [asdict(found) | {"off": found.off} for found in rows],
        "cells": [found.cells() for found in rows], "curves": curves, "profile": profile.to_dict(),
    }  # fmt: skip


def one_load(
    share: float, plan: Plan, server: Server, profile: ModelProfile, policy: str, say: Console
) -> tuple[Row, dict[str, Any]]:
    """The row of one load, and its quantiles live and simulated in ms."""
    say.print(f"{share:.0%} of the peak: {plan.rate:.0f}/s")
    before, started_s = others_cpu_s(server), time.perf_counter()
    live = in_loop(measure(plan))
    after, elapsed_s = others_cpu_s(server), time.perf_counter() - started_s
    setup = Setup(profile, plan.rate, policy, seed=plan.seed).solved()
    counts = [len(repeat.intended_ns) for repeat in live.repeats]
    tally, quantiles = simulate(setup, counts)
    drift = drift_of(live, profile)
    slower = replace(profile, batch_ns=tuple(round(time * drift) for time in profile.batch_ns))
    drifted, _ = simulate(replace(setup, profile=slower), counts)
    row = compare(share, live, tally, drifted, profile)
    if before is not None and after is not None:
        row = replace(row, others=max(0.0, after - before) / elapsed_s)
    live_ms = (np.quantile(scheduled(live), QUANTILES) / 1e6).tolist()
    return row, {"share": share, "live_ms": live_ms, "simulated_ms": quantiles}


def others_cpu_s(server: Server) -> float | None:
    """CPU time that all processes but the server and this one have used since the machine began (Linux only)."""
    used_s = server.cpu_seconds()
    if used_s is None:
        return None
    ticks = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK") - used_s - time.process_time()


def _rate(peak: Peak) -> float:
    assert peak.result.plan.rate is not None
    return peak.result.plan.rate


def _told(tried: Try, say: Console) -> None:
    say.print(f"peak: {tried.rate:.0f}/s {tried.why or 'kept'}", markup=False)


def draw(curves: Sequence[dict[str, Any]], path: Path) -> None:
    """Quantiles, live and simulated, a colour for each load."""
    from matplotlib import pyplot as plt

    from app.commands.plots import STYLE

    with plt.rc_context(STYLE):
        figure, axes = plt.subplots()
        for colour, curve in enumerate(curves):
            shares = [100 * share for share in QUANTILES]
            axes.plot(curve["live_ms"], shares, f"C{colour}-", label=f"{curve['share']:.0%} of the peak, live")
            axes.plot(curve["simulated_ms"], shares, f"C{colour}--", label=f"{curve['share']:.0%}, simulated")
        axes.set_xlim(left=0)
        axes.set_ylim(0, 100)
        axes.set_xlabel("latency in the server, ms")
        axes.set_ylabel("requests answered within it, %")
        axes.legend(loc="lower right")
        figure.tight_layout()
        figure.savefig(path)
        plt.close(figure)


def write(found: dict[str, Any], chosen: argparse.Namespace, facts: dict[str, str]) -> None:
    folder: Path = chosen.out
    folder.mkdir(parents=True, exist_ok=True)
    draw(found["curves"], folder / "live-vs-sim.png")
    store = folder / "live-vs-sim.json"
    store.write_text(json.dumps({**facts, **found}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    text = TEXT.format(
        model=chosen.model, repeats=chosen.repeats, seconds=chosen.seconds, peak=found["peak"], slo=SLO_MS,
        shares=" and ".join(f"{share:.0%}" for share in SHARES),
    )  # fmt: skip
    lines = [text, section.row(HEADINGS), section.row(["---"] * len(HEADINGS)), *map(section.row, found["cells"]), ""]
    lines += ["![Latency in the server, live and simulated](live-vs-sim.png)", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    (folder / "live-vs-sim.md").write_text("\n".join([*lines, ""]), encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.live_vs_sim", description=__doc__)
    parser.add_argument("--model", default="mlp", help="[mlp]")
    parser.add_argument("--models", default="bench", help="the server's --models [bench]")
    parser.add_argument("--policy", default="adaptive", help="[adaptive]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of the server [1]")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of a run [20]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each rate, with a seed each [3]")
    parser.add_argument("--seed", type=int, default=0, help="of the first run [0]")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds to measure batch times [60]")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the page, the JSON and the plot")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds what stops the server
    console = Console(stderr=True, highlight=False)
    facts = {
        "command": f"`python -m loadtest.bench.live_vs_sim --model {chosen.model} --policy {chosen.policy}`",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **machine.describe(),
    }
    try:
        found = run(chosen, console)
    except (Lagging, ValueError, ServerError, command.CommandError) as error:
        console.print(str(error), style="red", markup=False)
        return 1
    write(found, chosen, facts)
    for line in (HEADINGS, *found["cells"]):
        console.print(section.row(line), markup=False, soft_wrap=True)
    return 0 if all(abs(line["off"]) <= WITHIN for line in found["rows"]) else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the server has been stopped on the way here
        sys.exit(130)
