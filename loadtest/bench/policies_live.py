"""Policies against one another over HTTP: `python -m loadtest.bench.policies_live`. Writes docs/bench/policies-live.md.

For each model its batch times are measured, then its server's own peak. At 30 and 70 % of that peak every policy gets
the very same instants of the same seeds, one policy after the other within each seed, so that a change of the machine's
mood meets all. `window` has the delay that serves the most rows a second of five. What is compared is the mean latency
of each seed against the policy with the lowest: the difference over the seeds, with Student's interval.

Last the control: a convolutional network, for which batches gain nothing on a CPU. Its device time per row under
`adaptive` stands beside that of batches of one row.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from app.bench.peak import Try, find_peak
from app.bench.plan import Plan
from app.bench.run import Lagging, Session, in_loop
from app.bench.stats import Repeat, interval

from . import machine
from .load import LOOPBACK, ROOT
from .servers import Server, ServerError, starling
from .simulation import command
from .simulation.section import row

DOCS = ROOT / "docs" / "bench"
MODELS = ("mlp", "encoder")
SHARES = (0.3, 0.7)  # of the peak
DELAYS_MS = (1, 2, 5, 10, 20)
CONTROL = "resnet18"
SLO_MS = 200.0
IN_FLIGHT = 64  # while the delay of `window` is chosen
P99_WITHIN = 1.1  # of the best
PER_ROW_WITHIN = 1.03  # of batches of one row

TEXT = """\
# Policies over HTTP

{repeats} seeds of {seconds:g} s at each load, Poisson arrivals, binary payload, one row a request; every policy gets
the same instants, in alternation. Loads are shares of the server's own peak (99th percentile within {slo:g} ms under
`adaptive`). "beyond the lowest" is the mean over seeds of the difference to the policy with the lowest mean, with its
95 % interval (Student's t); "same" where the interval holds 0. Latencies in ms, from the intended instant to the last
byte.

`ebird` runs as many of its workers at once as there are cores, two here, the others have one worker: where a second
batch beside the first gains something, as for the encoder, that is `ebird`'s device and not its policy.
"""


@dataclass(frozen=True)
class Cell:
    """One policy at one load; ms. `beyond_ms` to the policy with the lowest mean, paired by seed."""

    model: str
    share: float
    rate: float
    policy: str
    mean_ms: float
    beyond_ms: float
    ci95_ms: float
    p99_ms: float
    batch: float
    errors: int

    @property
    def same(self) -> bool:
        return self.beyond_ms - self.ci95_ms <= 0

    def cells(self) -> list[str]:
        beyond = "lowest" if not self.beyond_ms else f"{self.beyond_ms:+.2f} ± {self.ci95_ms:.2f}"
        return [
            self.model, f"{self.share:.0%}", f"{self.rate:.0f}", self.policy, f"{self.mean_ms:.2f}", beyond,
            "same" if self.same else "", f"{self.p99_ms:.1f}", f"{self.batch:.2f}", str(self.errors),
        ]  # fmt: skip


HEADINGS = (
    "model",
    "of the peak",
    "rate/s",
    "policy",
    "mean",
    "beyond the lowest",
    "",
    "p99",
    "rows a batch",
    "errors",
)


def compare(model: str, share: float, rate: float, runs: dict[str, list[Repeat]]) -> list[Cell]:
    """The cells of one load, from the repeats of each policy in the order of their seeds."""
    means = {name: [float(one.completed.mean()) / 1e6 for one in repeats] for name, repeats in runs.items()}
    lowest = min(means, key=lambda name: sum(means[name]))
    found = []
    for name, repeats in runs.items():
        beyond = [own - best for own, best in zip(means[name], means[lowest], strict=True)]
        done = np.concatenate([one.completed for one in repeats])
        batches = np.concatenate([one.batch[one.batch > 0] for one in repeats])
        found.append(
            Cell(
                model, share, rate, name, float(np.mean(means[name])), float(np.mean(beyond)),
                0.0 if name == lowest else interval(beyond) or 0.0, float(np.quantile(done, 0.99)) / 1e6,
                len(batches) / float((1 / batches).sum()), sum(sum(one.errors.values()) for one in repeats),
            )
        )  # fmt: skip
    return found


def verdict(cells: Sequence[Cell]) -> list[str]:
    """Whether `adaptive` is lowest, or the same as the lowest, and its 99th percentile near the best, load by load."""
    lines = []
    for model, share in dict.fromkeys((cell.model, cell.share) for cell in cells):
        here = [cell for cell in cells if (cell.model, cell.share) == (model, share)]
        (own,) = [cell for cell in here if cell.policy == "adaptive"]
        best = min(cell.p99_ms for cell in here)
        mean = "lowest" if not own.beyond_ms else "the same as the lowest" if own.same else "NOT the lowest"
        tail = own.p99_ms / best
        lines.append(
            f"- {model}, {share:.0%}: `adaptive` has the mean {mean}; its p99 is {tail:.2f} x the best "
            f"({'within' if tail <= P99_WITHIN else 'NOT within'} {P99_WITHIN})"
        )
    return lines


class Contest:
    """One model: a server for each policy, all up at once, all but one idle at any time."""

    def __init__(self, model: str, chosen: argparse.Namespace, folder: str, say: Console) -> None:
        self.model = model
        self.source = f"{model}={ROOT / 'app' / 'models' / 'zoo' / model}"
        self.chosen = chosen
        self.folder = folder
        self.say = say

    def serve(self, *flags: str) -> Server:
        return starling(
            ("--model", self.source, "--max-batch", "32", "--threads", str(self.chosen.threads), "--profile-dir",
             self.folder, "--profile-budget-s", "0", *flags)
        )  # fmt: skip

    def plan(self, server: Server, **options: Any) -> Plan:
        return Plan(
            url=f"http://{LOOPBACK}:{server.port}", model=self.model, payload="binary", seed=self.chosen.seed,
            duration_s=self.chosen.seconds, repeats=self.chosen.repeats, max_lag_ms=self.chosen.max_lag_ms, **options,
        )  # fmt: skip

    def profile(self) -> None:
        """Into the servers' folder, where they look for it."""
        command.starling(
            "profile", self.model, "--model", self.source, "--max-batch", "32", "--threads", str(self.chosen.threads),
            "--budget-s", str(self.chosen.budget), "--no-suggest", profile_dir=Path(self.folder),
        )  # fmt: skip

    def delay_ms(self) -> int:
        """The delay of `window` that serves the most rows a second, all requests there are in flight."""
        rows: dict[int, float] = {}
        for delay in DELAYS_MS:
            with self.serve("--policy", "window", "--max-delay-ms", str(delay)) as server:
                server.wait_ready()
                plan = self.plan(server, concurrency=IN_FLIGHT)
                rows[delay] = in_loop(_once(plan, plan.duration_s)).throughput
            self.say.print(f"{self.model}: window of {delay} ms: {rows[delay]:.0f} rows/s", markup=False)
        return max(rows, key=lambda delay: rows[delay])

    def run(self) -> tuple[list[Cell], float]:
        delay = self.delay_ms()
        flags = {
            "adaptive": ("--policy", "adaptive"),
            "no_wait": ("--policy", "no_wait"),
            f"window, {delay} ms": ("--policy", "window", "--max-delay-ms", str(delay)),
            "preferred": ("--policy", "preferred"),
            "ebird": ("--policy", "ebird"),
        }
        with ExitStack() as stack:
            servers = {name: stack.enter_context(self.serve(*given)) for name, given in flags.items()}
            for server in servers.values():
                server.wait_ready()
            peak = in_loop(
                find_peak(replace(self.plan(servers["adaptive"]), duration_s=5, repeats=1), SLO_MS, self._told)
            )
            most = peak.result.plan.rate
            assert most is not None
            cells: list[Cell] = []
            for share in SHARES:
                runs = in_loop(self.alternate(servers, share * most))
                cells += compare(self.model, share, share * most, runs)
                for cell in cells[-len(runs) :]:
                    self.say.print(row(cell.cells()), markup=False, soft_wrap=True)
            return cells, most

    def _told(self, tried: Try) -> None:
        self.say.print(f"{self.model}: peak: {tried.rate:.0f}/s {tried.why or 'kept'}", markup=False)

    async def alternate(self, servers: dict[str, Server], rate: float) -> dict[str, list[Repeat]]:
        """All policies at each seed before the next seed; the first is another one each time."""
        runs: dict[str, list[Repeat]] = {name: [] for name in servers}
        async with AsyncExitStack() as stack:
            sessions = {}
            for name, server in servers.items():
                sessions[name] = await stack.enter_async_context(Session(self.plan(server, rate=rate)))
                await sessions[name].warm()
            names = list(servers)
            for index in range(self.chosen.repeats):
                for name in names[index % len(names) :] + names[: index % len(names)]:
                    session = sessions[name]
                    runs[name].append(await session.once(session.plan, session.plan.seed + index, self.chosen.seconds))
                    await session.settle()
        return runs


async def _once(plan: Plan, seconds: float) -> Any:
    async with Session(plan) as session:
        await session.warm()
        repeat = await session.once(plan, plan.seed, seconds)
        return argparse.Namespace(throughput=len(repeat.completed) / repeat.elapsed_s)


def control(chosen: argparse.Namespace, folder: str, say: Console) -> dict[str, float]:
    """Device time per row at 30 % of the peak, `adaptive` and batches of one row in alternation; ms."""
    contest = Contest(CONTROL, chosen, folder, say)
    contest.profile()
    with contest.serve() as adaptive, contest.serve("--max-batch", "1") as single:
        for server in (adaptive, single):
            server.wait_ready()
        peak = in_loop(find_peak(replace(contest.plan(adaptive), duration_s=5, repeats=1), SLO_MS, contest._told))
        most = peak.result.plan.rate
        assert most is not None
        runs = in_loop(contest.alternate({"adaptive": adaptive, "batch 1": single}, SHARES[0] * most))
    per_row = {}
    for name, repeats in runs.items():
        compute = np.concatenate([one.compute_ns[one.compute_ns >= 0] for one in repeats])
        batches = np.concatenate([one.batch[one.batch > 0] for one in repeats])
        per_row[name] = float((compute / batches).mean()) / 1e6  # each of b rows reports the batch's time and b
    return {
        "rate": SHARES[0] * most, "adaptive_ms": per_row["adaptive"], "single_ms": per_row["batch 1"],
        "ratio": per_row["adaptive"] / per_row["batch 1"],
    }  # fmt: skip


def write(cells: Sequence[Cell], peaks: dict[str, float], found: dict[str, float], chosen: Any, facts: Any) -> None:
    folder: Path = chosen.out
    folder.mkdir(parents=True, exist_ok=True)
    data = {**facts, "peaks": peaks, "cells": [asdict(cell) for cell in cells], "control": found}
    (folder / "policies-live.json").write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    lines = [TEXT.format(repeats=chosen.repeats, seconds=chosen.seconds, slo=SLO_MS)]
    lines += [f"Peaks: {', '.join(f'`{model}` {rate:.0f}/s' for model, rate in peaks.items())}.", ""]
    lines += [row(HEADINGS), row(["---"] * len(HEADINGS)), *(row(cell.cells()) for cell in cells), "", *verdict(cells)]
    if found:
        kept = "within" if found["ratio"] <= PER_ROW_WITHIN else "NOT within"
        lines += [
            "",
            f"Control: `{CONTROL}` at 30 % of its peak ({found['rate']:.0f}/s) takes {found['adaptive_ms']:.3f} ms of "
            f"the device a row under `adaptive` and {found['single_ms']:.3f} ms in batches of one row: "
            f"x {found['ratio']:.3f}, {kept} {PER_ROW_WITHIN}.",
        ]
    lines += ["", *(f"- {name}: {value}" for name, value in facts.items()), ""]
    (folder / "policies-live.md").write_text("\n".join(lines), encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.policies_live", description=__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS), help=f"[{' '.join(MODELS)}]")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a run [6]")
    parser.add_argument("--repeats", type=int, default=5, help="seeds at each load [5]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--threads", type=int, default=1, help="compute threads of a server [1]")
    parser.add_argument("--budget", type=float, default=30.0, help="seconds to measure batch times [30]")
    parser.add_argument("--max-lag-ms", type=float, default=2.0, help="of the load generator itself [2]")
    parser.add_argument("--no-control", action="store_true", help=f"leave out {CONTROL}")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder for the page and the JSON")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds what stops the servers
    say = Console(stderr=True, highlight=False)
    facts = {
        "command": "`python -m loadtest.bench.policies_live`",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        **machine.describe(),
    }
    cells: list[Cell] = []
    peaks: dict[str, float] = {}
    found: dict[str, float] = {}
    try:
        with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
            for model in chosen.models:
                contest = Contest(model, chosen, folder, say)
                contest.profile()
                more, peaks[model] = contest.run()
                cells += more
            if not chosen.no_control:
                found = control(chosen, folder, say)
    except (Lagging, ValueError, ServerError, command.CommandError) as error:
        say.print(str(error), style="red", markup=False)
        return 1
    write(cells, peaks, found, chosen, facts)
    for line in verdict(cells):
        say.print(line, markup=False)
    return int(
        any("NOT" in line for line in verdict(cells)) or (math.inf if not found else found["ratio"]) > PER_ROW_WITHIN
    )


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # the servers have been stopped on the way here
        sys.exit(130)
