"""Compares what `starling size` says with a running server: `python -m experiments.policies.live_vs_sim`.

For each model and format of requests it has `starling size --measure` measure the batches and what requests cost, and
starts the server that it suggests. At 30 and 60 % of the peak (the largest rate whose 99th percentile stays within
200 ms) it measures both again, because the speed of a machine drifts, puts the load on the server, and asks `starling
size` for the same rate. Compared are the median and the 99th percentile that the load generator sees. Writes
docs/bench/live-vs-sim.md and .json.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.common.live import OtherProcesses, peak_rate
from experiments.common.small_bert import TEXT, save_small_bert
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.common.paths import LOOPBACK, ROOT
from loadtest.common.servers import Server, starling
from loadtest.generator.plan import BenchPlan
from loadtest.generator.run import in_loop, measure

SHARES = (0.3, 0.6)  # of the peak
SLO_MS = 200.0
TRY_S = 4.0  # of each rate tried for the peak
LATE_MS = 1e5  # the load generator's own lateness is no reason to stop: what it finds is compared
WITHIN = 0.25  # of the live figure
QUIET_CORES = 0.1  # of other processes: beside more, a load says nothing of what it is compared with
FIGURES = ("p50_ms", "p99_ms")
CASES = ("mlp binary", "mlp json", "digits file", "bert json", "sleep json")


@dataclass(frozen=True)
class Case:
    """A model and the format of its requests. `data`: as of `starling bench`, None for requests that are made up."""

    model: str
    models: str
    format: str
    data: Path | None = None

    @property
    def name(self) -> str:
        return f"{self.model} {self.format}"


def cases(folder: Path) -> dict[str, Case]:
    """By name. Models and requests that no repository has are written to the folder."""
    every = [
        Case("mlp", "bench", "binary"),
        Case("mlp", "bench", "json"),
        Case("digits", "demo", "file", ROOT / "app" / "models" / "demo" / "digits" / "samples" / "3.jpg"),
        Case("bert", str(folder / "models"), "json", folder / "text.json"),
        Case("sleep", str(ROOT / "loadtest" / "bench" / "models"), "json"),
    ]
    return {case.name: case for case in every}


def write_bert(folder: Path) -> None:
    """A small BERT for text classification, and a request of one sentence."""
    save_small_bert(folder / "models" / "bert")
    body = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [TEXT]}]}
    (folder / "text.json").write_text(json.dumps(body), encoding="utf-8")


@dataclass(frozen=True)
class Comparison:
    """One case. Server and `size` use the same profile, kept in `folder`."""

    case: Case
    chosen: argparse.Namespace
    folder: Path
    say: Callable[[str], None]

    def size(self, rate: float, requests: int, *more: str) -> dict[str, Any]:
        """What `starling size` says of one replica at this rate."""
        case = self.case
        return command.starling(
            "size", "--model", case.model, "--models", case.models, "--rate", str(rate), "--p99-ms", "1e6",
            "--headroom", "0", "--max-replicas", "1", "--format", case.format, "--requests", str(max(100, requests)),
            "--seed", str(self.chosen.seed), "--json", *more, profile_dir=self.folder,
        ).cell  # fmt: skip

    def measured(self) -> dict[str, Any]:
        """What `starling size` says after it has measured batches and requests."""
        data = () if self.case.data is None else ("--data", str(self.case.data))
        return self.size(1.0, 100, "--measure", "--budget-s", str(self.chosen.budget), *data)

    def measure(self) -> Data:
        case, chosen = self.case, self.chosen
        self.say(f"{case.name}: measuring")
        first = self.measured()
        flags = shlex.split(first["command"])[2:]  # behind `starling serve`
        with starling((*flags, "--profile-dir", str(self.folder))) as server:
            server.wait_ready()
            plan = BenchPlan(
                url=f"http://{LOOPBACK}:{server.port}", model=case.model, data=case.data, rate=None,
                payload="binary" if case.format == "binary" else "json", duration_s=chosen.seconds, repeats=1,
                seed=chosen.seed, max_lag_ms=LATE_MS,
            )  # fmt: skip
            peak = chosen.peak or peak_rate(plan, SLO_MS, TRY_S, self.say)
            rows = []
            for share in SHARES:
                at = replace(plan, rate=share * peak)
                rows.append(self.one_load(share, at, server))
        return {"case": case.name, "peak": peak, "http": first["http"], "rows": rows}

    def one_load(self, share: float, plan: BenchPlan, server: Server) -> Data:
        """One load, live and as `size` says, from what was measured just before."""
        assert plan.rate is not None
        self.measured()
        others = OtherProcesses([server])
        live = in_loop(measure(plan))
        cores = others.cores()
        planned = self.size(plan.rate, live.requests)["predicted"][0]
        row: Data = {
            "case": self.case.name, "share": share, "rate": plan.rate, "requests": live.requests, "others": cores,
            "p50_ms": live.figures["p50_ms"], "p99_ms": live.figures["p99_ms"], "batch": live.figures["mean_batch"],
            "said_p50_ms": planned["p50_ms"], "said_p99_ms": planned["p99_ms"], "said_batch": planned["mean_batch"],
        }  # fmt: skip
        beside = "" if cores is None else f", beside {cores:.2f} cores of others"
        self.say(
            "{case}, {rate:.0f}/s: live {p50_ms:.2f} / {p99_ms:.2f}, says ".format(**row)
            + ", ".join(said(row, figure) for figure in FIGURES)
            + beside
        )
        return row


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--case", action="append", choices=CASES, help="model and format; may be repeated [all]")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a run [10]")
    parser.add_argument("--seed", type=int, default=0, help="of the arrivals [0]")
    parser.add_argument("--budget", type=float, default=8.0, help="seconds to measure batch times, each time [8]")
    parser.add_argument("--peak", type=float, default=0.0, help="requests/s that count as the peak [searched]")


def measure_all(chosen: argparse.Namespace, run: Run) -> Data:
    settings = {"seconds": chosen.seconds, "slo_ms": SLO_MS, "budget": chosen.budget}
    found: list[Data] = []
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as folder:
        known = cases(Path(folder))
        for name in chosen.case or CASES:
            if known[name].model == "bert":
                write_bert(Path(folder))
            found.append(Comparison(known[name], chosen, Path(folder) / "profiles", run.say).measure())
            run.keep({"settings": settings, "cases": found})
    return {"settings": settings, "cases": found}


def off(row: Data, figure: str) -> float:
    """What `size` says of a figure over the live one, less one; infinity where it says that the queue never settles."""
    told = row[f"said_{figure}"]
    return float("inf") if told is None else float(told / row[figure] - 1)


def undisturbed(row: Data) -> bool:
    return row["others"] is None or row["others"] < QUIET_CORES


def said(row: Data, figure: str) -> str:
    """What `size` says of a figure, and how far off that is."""
    told = row[f"said_{figure}"]
    return "never settles" if told is None else f"{told:.2f} ({off(row, figure):+.0%})"


def judged(data: Data) -> list[tuple[Data, str]]:
    """The figures of loads that were not disturbed."""
    rows = [row for case in data["cases"] for row in case["rows"]]
    return [(row, figure) for row in rows if undisturbed(row) for figure in FIGURES]


def missed(data: Data) -> list[str]:
    """The figures that are too far off."""
    return [
        f"{row['case']}, {row['share']:.0%} of the peak: {figure[:3]} {off(row, figure):+.1%}"
        for row, figure in judged(data)
        if abs(off(row, figure)) > WITHIN
    ]


PAGE = Page("live-vs-sim", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.policies.live_vs_sim", __doc__, measure_all, options_of)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
