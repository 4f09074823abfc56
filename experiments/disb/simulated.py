"""DISB on a model of REEF's GPU, in virtual time: `python -m experiments.disb.simulated`.

REEF's five models in kernels (see `modelled` and `gpu`), DISB's workloads A to E and REAL, and a column for each preset
of the scheduler's classes; and what becomes of two workloads when what the model takes for granted is changed. Writes
docs/bench/disb-simulated.md and .json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from app.scheduler.types import ClassSpec, DeviceSpec, Program, WorkerSpec
from experiments.common.baselines import scheduler_of
from experiments.common.processes import spread
from experiments.disb.client.figures import by_class, by_task
from experiments.disb.client.workload import Klass, Task, Workload, read
from experiments.disb.generate import FOLDER
from experiments.disb.gpu import LAUNCH_US, LEFT, SHARED, ModelledGpu, Sharing
from experiments.disb.modelled import NETWORKS, SLOWER, SPREAD, WHOLE, network, pairs
from experiments.disb.virtual import Played, Server, play
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.generator.stats import percentile

SECONDS = 5.0  # virtual, of each run
WORKLOADS = ("A", "B", "B-repository", "C", "D", "E", "REAL")
VARIED = ("A", "D")  # workloads
VARIED_S = 3.0
_US = 1000


@dataclass(frozen=True)
class Assumed:
    """What the model takes for granted and the page varies, see `gpu`. `slower`: the mean of the pairs, see `modelled`.

    `pads`: the scheduler knows the pairs. `prompt`: of clients, see `virtual`.
    """

    shared: float = SHARED
    left: float = LEFT
    slower: float = SLOWER
    pads: bool = True
    yields: bool = False
    prompt: bool = True


@dataclass(frozen=True)
class Column:
    """One way to schedule. `title`: as the page says it. `only`: the tasks of one class, the others do not run.

    Under `reef` best-effort requests have a stage for each kernel, and a worker takes these one after another by itself
    until it is recalled; there is a worker for each of their clients, and one that is kept. Else a request is one unit.
    """

    title: str
    preset: str
    only: Klass | None = None
    slowdown: float = 0.02

    def play(self, workload: Workload, seed: int = 0, assumed: Assumed | None = None) -> Played:
        """Play the workload on a new device."""
        assumed = assumed or Assumed()
        tasks = workload.tasks if self.only is None else workload.only(self.only).tasks
        programs = self._programs(tasks)
        slower = {
            (own.id, other.id): part
            for (one, two), part in pairs(assumed.slower).items()
            if (own := programs.get((one, "realtime"))) and (other := programs.get((two, "best_effort")))
        }
        scheduler = scheduler_of(self.preset, self._device(workload.tasks, len(tasks)))
        if assumed.pads:
            scheduler.pair(slower, 0)
        sharing = Sharing(assumed.shared, assumed.left, self.parts, assumed.yields, slower)
        times = {
            program.id: network(program.name).groups(self._kernels(klass)) for (_, klass), program in programs.items()
        }
        gpu = ModelledGpu(times, sharing)
        server = Server(scheduler, programs, gpu, round(LAUNCH_US * _US), assumed.prompt)
        return play(replace(workload, tasks=tasks), server, seed, {task.id: alone_ns(task) for task in tasks})

    @property
    def parts(self) -> bool:
        """Whether best-effort requests run in parts, and streams have priorities."""
        return self.preset == "reef"

    def _kernels(self, klass: str) -> int:
        """Of a stage of this class."""
        return 1 if self.parts and klass == "best_effort" else WHOLE

    def _programs(self, tasks: Sequence[Task]) -> dict[tuple[str, str], Program]:
        """By model and class."""
        pairs = dict.fromkeys((task.model, task.klass) for task in tasks)
        return {
            (model, klass): network(model).staged(number, self._kernels(klass))
            for number, (model, klass) in enumerate(pairs, 1)
        }

    def _device(self, tasks: Sequence[Task], playing: int) -> DeviceSpec:
        workers = playing if self.preset == "streams" else 1
        if self.parts:
            workers = 1 + sum(task.klass == "best_effort" for task in tasks)
        return DeviceSpec(
            tuple(WorkerSpec(1) for _ in range(workers)), max_running=workers, multi_step=self.parts,
            classes=ClassSpec(slowdown=self.slowdown),
        )  # fmt: skip


#: By name, in the order of the page. The first is what the others are compared with.
COLUMNS = {
    "rt_only": Column("real time alone, one request at a time", "seq", only="realtime"),
    "rt_workers": Column("real time alone on the workers of `reef`", "reef", only="realtime"),
    "seq": Column("whole models, one at a time, real time first", "seq"),
    "streams": Column("whole models, a stream for each client, no classes", "streams"),
    "reef": Column("best-effort work is preempted between kernels, and pads", "reef"),
    "reef_1": Column("the same, where padding may slow real time by 1 %", "reef", slowdown=0.01),
}
#: What the page varies: each is the base but for one assumption.
VARIATIONS = {
    "as assumed": Assumed(), "shared 0.25": Assumed(shared=0.25), "shared 0.5": Assumed(shared=0.5),
    "left 0.5": Assumed(left=0.5), "left 1": Assumed(left=1.0), "pairs 0.5 %": Assumed(slower=0.005),
    "pairs 2 %": Assumed(slower=0.02), "no padding": Assumed(pads=False), "blocks make way": Assumed(yields=True),
    "clients that are late": Assumed(prompt=False),
}  # fmt: skip


def alone_ns(task: Task) -> int:
    """A request of the task with the device to itself, all kernels handed over at once."""
    return round(LAUNCH_US * _US) + sum(network(task.model).groups(WHOLE))


def cell(given: tuple[str, str, float]) -> dict[str, Any]:
    """Figures of the first seconds of one workload under one column."""
    name, column, seconds = given
    played = COLUMNS[column].play(_first(name, seconds))
    return {"workload": name, "column": column, "units": played.units, **_figures(played, seconds)}


def varied(given: tuple[str, str, float]) -> dict[str, Any]:
    """One workload under `reef`, over real time alone, with other assumptions."""
    name, variation, seconds = given
    alone, both = (
        _figures(COLUMNS[column].play(_first(name, seconds), 0, VARIATIONS[variation]), seconds)["classes"]
        for column in ("rt_only", "reef")
    )
    return {
        "workload": name, "variation": variation,
        "latency": both["realtime"]["mean_ms"] / alone["realtime"]["mean_ms"],
        "throughput": both["all"]["throughput"] / alone["all"]["throughput"],
    }  # fmt: skip


def _first(name: str, seconds: float) -> Workload:
    workload = read(FOLDER / f"{name}.json")
    return replace(workload, time_s=min(workload.time_s, seconds))


def _figures(played: Played, time_s: float) -> dict[str, Any]:
    """Of classes, and the waits of real-time requests until their first unit began."""
    waits = [
        np.array(played.wait_ns[one.played.task.id], np.int64)
        for one in played.outcomes
        if one.played.task.klass == "realtime"
    ]
    joined = np.concatenate(waits) if waits else np.zeros(0, np.int64)
    waited = {f"wait_{title}_ms": percentile(joined, share) for title, share in (("p50", 0.5), ("p99", 0.99))}
    tasks = {one["task"]: one["mean_ms"] for one in by_task(played.outcomes, time_s)}
    return {"classes": by_class(played.outcomes, time_s), **waited, "task_mean_ms": tasks}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of each run [5]")
    parser.add_argument("--columns", default=",".join(COLUMNS), help=f"some of [{','.join(COLUMNS)}]")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"some of [{','.join(WORKLOADS)}]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    for name, known in (("columns", COLUMNS), ("workloads", WORKLOADS)):
        given = getattr(chosen, name).split(",")
        if unknown := [one for one in given if one not in known]:
            parser.error(f"{name}: expected some of {', '.join(known)}, got {unknown[0]!r}")
        setattr(chosen, name, given)
    if chosen.columns[:2] != list(COLUMNS)[:2]:
        parser.error("columns: expected rt_only,rt_workers first, which the others are compared with")
    if not chosen.seconds > 0:
        parser.error(f"seconds: expected above 0, got {chosen.seconds:g}")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    networks = [
        {**asdict(one), "kernel_us": [min(one.kernel_ns()) / _US, max(one.kernel_ns()) / _US]} for one in NETWORKS
    ]
    settings = {
        "launch_us": LAUNCH_US, "shared": SHARED, "left": LEFT, "slower": SLOWER, "spread": SPREAD,
        "seconds": chosen.seconds, "varied_s": min(chosen.seconds, VARIED_S),
        "networks": networks, "columns": {name: COLUMNS[name].title for name in chosen.columns},
        "workloads": chosen.workloads, "pairs": [[*pair, part] for pair, part in pairs(SLOWER).items()],
    }  # fmt: skip
    cells = [(name, column, chosen.seconds) for name in chosen.workloads for column in chosen.columns]
    variations = [(name, how, settings["varied_s"]) for how in VARIATIONS for name in VARIED]
    return {
        "settings": settings, "cells": spread(cell, cells, run.say), "varied": spread(varied, variations, run.say),
    }  # fmt: skip


_SEQ_C_TO_E, _STREAMS_C_TO_E = "1.51 to 1.86", "2.65 to 3.31"
#: Published, over real time alone: mean latency of real-time requests, and throughput of all requests. By the name of
#: a column and the workload. Of C to E the text gives ranges for what it compares with.
LATENCY: dict[str, dict[str, str]] = {
    "seq": {"A": "1.95", "B": "1.12", **dict.fromkeys("CDE", _SEQ_C_TO_E), "REAL": "1.35"},
    "streams": {"A": "1.84", "B": "1.70", **dict.fromkeys("CDE", _STREAMS_C_TO_E), "REAL": "3.35"},
    "reef": {"A": "1.005", "B": "1.01", **dict.fromkeys("CDE", "< 1.015"), "REAL": "< 1.02"},
}
THROUGHPUT: dict[str, dict[str, str]] = {
    "seq": {"A": "1.46", "B": "0.96", **dict.fromkeys("CDE", "1.34 to 2.10"), "REAL": "3.6"},
    "streams": {"A": "1.66", "B": "0.76", **dict.fromkeys("CDE", "3.94 to 8.19"), "REAL": "8.3"},
    "reef": {"A": "1.60", "B": "1.14", "C": "near GPUStreams", "D": "3.00", "E": "2.96", "REAL": "7.7"},
}
NAMES = {"seq": "SEQ", "streams": "GPUStreams", "reef": "REEF"}


def over(data: Data, workload: str, column: str, klass: str, figure: str, alone: str = "rt_only") -> float:
    """A figure of one column over that of real time alone."""
    cells = {one["column"]: one for one in data["cells"] if one["workload"] == workload}
    return float(cells[column]["classes"][klass][figure] / cells[alone]["classes"][klass][figure])


PAGE = Page("disb-simulated", __name__)
EXPERIMENT = Experiment(PAGE, "experiments.disb.simulated", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
