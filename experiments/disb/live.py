"""DISB over HTTP on this machine: `python -m experiments.disb.live`. Writes docs/bench/disb-live.json.

Five models of a CPU in stages take the places of REEF's (see `live_models`); rates are scaled so that real time alone
uses the share of the device that it does in the paper. Servers differ in how classes share the device, and in the
number of workers. Each workload runs on all of them in turns, and on none of them longer than `--seconds` at a time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from experiments.common.baselines import command_of
from experiments.common.live import rotated, serving
from experiments.disb.client.clients import Clients, SentAs, WorkloadPlan
from experiments.disb.client.figures import by_class
from experiments.disb.client.workload import Klass, Load, Task, Workload, read
from experiments.disb.live_models import PLACES, write_models
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, fmt
from loadtest.common.servers import MeasurementError, Server
from loadtest.generator.run import in_loop

WORKLOADS = ("A", "B", "C", "D", "E", "REAL")
QUICK = {"seconds": 0.3, "repeats": 1, "pair_s": 0.0}
FOLDER = Path(__file__).parent / "workloads"
#: What the paper's models take alone.
PAPER_MS = {"resnet152": 13.6, "densenet201": 3.5, "vgg19": 4.4, "inceptionv3": 8.3, "distilbert": 5.4}
TRACE_S = 38.9  # from the first instant of REAL to the last
Said = Callable[[str], None]


@dataclass(frozen=True)
class Column:
    """One way to serve. `only`: the tasks of one class, the others do not run; `base`: the column without them."""

    title: str
    server: str
    classes: SentAs = "header"
    only: Klass | None = None
    base: str = "rt_only"


#: Scheduler and workers by server. One worker runs one unit at a time; two have a core each, which loop and client need
#: as well.
SERVERS = {"reef": ("reef", "1x1"), "seq": ("seq", "1x1"), "streams": ("streams", "1x1"), "two": ("reef", "1,1")}
COLUMNS = {
    "rt_only": Column("real time alone", "reef", only="realtime"),
    "reef": Column("the default", "reef"),
    "seq": Column("whole models, real time first", "seq"),
    "streams": Column("no classes", "streams", classes="none"),
    "priority": Column("no classes; calls of priority 1 and 2", "streams", classes="priority"),
    "rt_only_2": Column("real time alone, two workers", "two", only="realtime", base="rt_only_2"),
    "reef_2": Column("the default, two workers of one thread", "two", base="rt_only_2"),
}


def scale(workload: Workload, alone_ms: Mapping[str, float]) -> float:
    """What rates are to be multiplied by, so that real time alone takes as much of the time as in the paper.

    `alone_ms`: by the paper's name of the model. Raises ValueError where real time runs in a closed loop.
    """
    shares = [(per_second(task) * PAPER_MS[task.model], per_second(task) * alone_ms[task.model])
              for task in workload.tasks if task.klass == "realtime"]  # fmt: skip
    theirs, ours = (sum(column) for column in zip(*shares, strict=True))
    return theirs / ours


def share(workload: Workload) -> float:
    """Of the device's time that real time alone uses in the paper."""
    rates = [per_second(task) * PAPER_MS[task.model] for task in workload.tasks if task.klass == "realtime"]
    return sum(rates) / 1e3


def per_second(task: Task) -> float:
    load = task.load
    if load.kind == "trace":
        return len(load.trace) / TRACE_S
    if not load.frequency:
        raise ValueError(f"{task.id}: expected a load with a rate, got {load.kind}")
    return load.frequency


class Scene:
    """The servers, and what each model takes alone. `say` tells what is done."""

    def __init__(self, chosen: argparse.Namespace, folder: Path, say: Said) -> None:
        self.chosen = chosen
        self.folder = folder
        self._say = say
        self.servers: dict[str, Server] = {}
        self.alone_ms: dict[str, float] = {}  # by the paper's name of the model
        write_models(folder / "models", chosen.quick)

    def profile_pairs(self) -> None:
        """Measure what each model is slowed by beside each other one, where the servers look for it."""
        for name in PLACES.values():
            command.profile(
                self.folder / "profiles", name, "--models", str(self.folder / "models"), "--beside", "all",
                "--threads", "1", "--budget-s", str(self.chosen.pair_s),
            )  # fmt: skip
            self._say(f"{name} is measured beside each model")

    def flags(self, name: str) -> Sequence[str]:
        models, profiles = self.folder / "models", self.folder / "profiles"
        shared = ("--models", str(models), "--profile-dir", str(profiles), "--profile-budget-s", "0")
        return (*shared, "--threads", "1", "--workers", SERVERS[name][1])

    def beside(self) -> dict[str, dict[str, float]]:
        """By how much of its time each model is slowed by each other one, as the server with two workers knows it."""
        found = {}
        for name in PLACES.values():
            _, _, body = self.servers["two"].call("GET", f"/v2/models/{name}/stats")
            found[name] = json.loads(body)["model_stats"][0]["starling"]["beside"]
        return found

    def plan(self, server: str, workload: Workload, classes: SentAs = "header") -> WorkloadPlan:
        url = self.servers[server].url
        return WorkloadPlan(url=url, workload=workload.mapped(used(workload)), classes=classes, seed=self.chosen.seed)

    async def alone(self) -> None:
        """The mean latency of each model, one request after another on the server of the default: the lesser of two."""
        tasks = tuple(Task(name, Load("continuous"), name) for name in PLACES)
        async with Clients(self.plan("reef", Workload("alone", 1.0, tasks))) as clients:
            tried = [[await clients.alone(number) for number in range(len(PLACES))] for _ in range(2)]
        self.alone_ms = {name: min(each) for name, each in zip(PLACES, zip(*tried, strict=True), strict=True)}
        self._say("alone: " + ", ".join(f"{PLACES[name]} {ms:.2f} ms" for name, ms in self.alone_ms.items()))

    async def play(self, column: Column, workload: Workload, seed: int, seconds: float) -> dict[str, Any]:
        """One run: figures by class, and the generator's lag. Raises MeasurementError for a wrong answer."""
        if column.only is not None:
            workload = workload.only(column.only)
        plan = self.plan(column.server, replace(workload, time_s=seconds), column.classes)
        alone_ms = [self.alone_ms[task.model] for task in workload.tasks]
        async with Clients(plan) as clients:
            outcomes, lags = await clients.play(plan.workload, seed, range(len(alone_ms)), alone_ms)
        for outcome in outcomes:
            for example in outcome.examples.values():
                raise MeasurementError(f"{workload.name}: {outcome.played.task.id}: {example}")
        lag = sorted(lags)
        return {
            "classes": by_class(outcomes, seconds),
            "lag_p99_ms": lag[int(0.99 * len(lag))] / 1e6 if lag else 0.0,
        }


def used(workload: Workload) -> dict[str, str]:
    """Of the models that take the places of the paper's, those of this workload."""
    return {task.model: PLACES[task.model] for task in workload.tasks}


async def in_turns(scene: Scene, name: str, say: Said) -> dict[str, Any]:
    """A workload on every column, round by round; each begins with another one. Figures of all runs, by column."""
    given = read(FOLDER / f"{name}.json")
    factor = scale(given, scene.alone_ms)
    workload = given.scaled(factor)
    runs: dict[str, list[dict[str, Any]]] = {column: [] for column in COLUMNS}
    for server in SERVERS:  # connections, caches and clock rates
        warm = next(column for column in COLUMNS.values() if column.server == server and column.only is None)
        await scene.play(warm, workload, scene.chosen.seed, min(0.5, scene.chosen.seconds))
    for index in range(scene.chosen.repeats):
        for column in rotated(COLUMNS, index):
            seed = scene.chosen.seed + index
            runs[column].append(await scene.play(COLUMNS[column], workload, seed, scene.chosen.seconds))
    figures = {"scale": factor, "share": share(given), "runs": runs}
    mean, answers = (median(over(figures, "reef", which)) for which in (MEAN, ANSWERS))
    say(f"{name}: rates x {factor:.2f}; reef: mean {mean:.2f} x alone, all {answers:.2f} x")
    return figures


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a run [2]")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each workload and column [3]")
    parser.add_argument("--pair-s", type=float, default=4.0, help="to measure a model beside all; 0: do not [4]")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"[{','.join(WORKLOADS)}]")
    parser.add_argument("--seed", type=int, default=0, help="the first [0]")
    parser.add_argument("--quick", action="store_true", help="tiny models, one short run of each: to try it")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    chosen.names = chosen.workloads.split(",")
    for name in chosen.names:
        if name not in WORKLOADS:
            parser.error(f"workloads: expected some of {', '.join(WORKLOADS)}, got {name!r}")
    if chosen.seconds <= 0 or chosen.repeats < 1:
        parser.error("seconds, repeats: expected a number above 0")
    if chosen.quick:
        vars(chosen).update(QUICK)


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name:
        scene = Scene(chosen, Path(name), run.say)
        if chosen.pair_s:
            scene.profile_pairs()
        commands = {name: command_of(scheduler) for name, (scheduler, _) in SERVERS.items()}
        with serving({name: scene.flags(name) for name in SERVERS}, commands) as scene.servers:
            run.say("servers are ready")
            in_loop(scene.alone())
            workloads = {one: in_loop(in_turns(scene, one, run.say)) for one in chosen.names}
            beside = scene.beside()
    return {
        "settings": {"seconds": chosen.seconds, "repeats": chosen.repeats, "seed": chosen.seed},
        "columns": {column: one.title for column, one in COLUMNS.items()},
        "base": {column: one.base for column, one in COLUMNS.items()},
        "models": {
            name: {"is": PLACES[name], "paper_ms": PAPER_MS[name], "alone_ms": ms}
            for name, ms in scene.alone_ms.items()
        },
        "beside": beside, "workloads": workloads,
    }  # fmt: skip


ONE_WORKER, TWO_WORKERS = 1.15, 1.05  # of the mean of real time alone, at most
SHOWN = ("reef", "seq", "streams", "priority", "reef_2")
#: What is compared with real time alone: a class and its figure.
MEAN, P99, ANSWERS = ("realtime", "mean_ms"), ("realtime", "p99_ms"), ("all", "throughput")


def figure(runs: Sequence[Data], klass: str, name: str) -> list[float | None]:
    """One figure of one class, a value for each run."""
    return [run["classes"].get(klass, {}).get(name) for run in runs]


def middle(runs: Sequence[Data], which: tuple[str, str], form: str = "ms") -> str:
    """The median of a figure, where it is known."""
    known = [value for value in figure(runs, *which) if value is not None]
    return fmt(median(known), form) if known else ""


def over(workload: Data, column: str, which: tuple[str, str], base: str = "rt_only") -> list[float]:
    """A column's figure over that of real time alone, round by round, where both are known."""
    pairs = zip(figure(workload["runs"][column], *which), figure(workload["runs"][base], *which), strict=True)
    return [ours / alone for ours, alone in pairs if ours is not None and alone] or [float("nan")]


def missed(data: Data) -> list[str]:
    lines = []
    for name, workload in data["workloads"].items():
        seq = median(over(workload, "seq", ANSWERS))
        for column, most in (("reef", ONE_WORKER), ("reef_2", TWO_WORKERS)):
            mean = median(over(workload, column, MEAN, data["base"][column]))
            if not mean <= most:
                lines.append(f"{name}, {column}: real-time mean {mean:.2f} x alone, not {most:g}")
            # answers of both over the same one-worker server: two workers alone do more than one
            answers = median(over(workload, column, ANSWERS))
            if not answers > seq:
                lines.append(f"{name}, {column}: {answers:.2f} x the answers of real time alone, seq {seq:.2f}")
    return lines


PAGE = Page("disb-live", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.disb.live", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
