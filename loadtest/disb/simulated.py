"""DISB on a model of REEF's GPU, in virtual time: `python -m loadtest.disb.simulated`.

REEF's five models in kernels (see `modelled`), DISB's workloads A to E and REAL, and a column for each way to schedule
them; and REEF's study of its queue: how long real-time requests wait, and how much longer a best-effort request takes,
when a stage has more kernels. Writes docs/bench/disb-simulated.md and .json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from app.bench import workload_report as report
from app.bench.stats import percentile
from app.bench.workload import Klass, Load, Task, Workload, read
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import DeviceSpec, WorkerSpec
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.processes import spread

from . import simulated_page
from .generate import FOLDER
from .modelled import LAUNCH_US, NETWORKS, SHARED, SPREAD, WHOLE, ModelledGpu, network
from .virtual import Played, Server, play

KERNELS = 4  # of a stage, where stages are not whole models: REEF's choice for its queue
WORKLOADS = ("A", "B", "B-repository", "C", "D", "E", "REAL")
QUEUES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUEUE_S = 30.0
_US = 1000


@dataclass(frozen=True)
class Column:
    """One way to schedule. `title`: as the page says it. `kernels` of a stage; WHOLE: each model is one stage.

    `goes_on`: a worker takes the next stage by itself until it is recalled; else each stage is handed over.

    `streams`: a worker for each client, all at once; else one worker. `priorities`: calls have the priority of their
    class, 1 or 2. `classes`: they have their class. `only`: the tasks of one class, the others do not run. `scheduler`:
    what schedules; a preset is another one here.
    """

    title: str
    kernels: int = WHOLE
    goes_on: bool = False
    streams: bool = False
    priorities: bool = True
    classes: bool = False
    only: Klass | None = None
    scheduler: Callable[[DeviceSpec], Scheduler] = Scheduler

    def play(self, workload: Workload, seed: int = 0, prompt: bool = True) -> Played:
        """Play the workload on a new device."""
        tasks = workload.tasks if self.only is None else workload.only(self.only).tasks
        models = list(dict.fromkeys(task.model for task in tasks))
        programs = {model: network(model).program(number, self.kernels) for number, model in enumerate(models, 1)}
        workers = len(tasks) if self.streams else 1
        device = DeviceSpec(tuple(WorkerSpec(1) for _ in range(workers)), max_running=workers, goes_on=self.goes_on)
        server = Server(
            self.scheduler(device), programs, ModelledGpu(list(programs.values())), round(LAUNCH_US * _US),
            self.priorities, self.classes, prompt,
        )  # fmt: skip
        return play(replace(workload, tasks=tasks), server, seed, {task.id: alone_ns(task) for task in tasks})


#: By name, in the order of the page. The first is what the others are compared with.
COLUMNS = {
    "rt_only": Column("real time alone", only="realtime"),
    "seq": Column("whole models, real time first"),
    "streams": Column("a stream for each client", streams=True, priorities=False),
    "priority": Column("priorities between stages", kernels=KERNELS, goes_on=True),
    "handed": Column("the same, each stage handed over", kernels=KERNELS),
}
SWEPT = ("priority", "handed")  # columns of the queue's study, each with other numbers of kernels


def alone_ns(task: Task) -> int:
    """A request of the task with the device to itself, all kernels handed over at once."""
    return round(LAUNCH_US * _US) + sum(network(task.model).stages(WHOLE))


def cell(given: tuple[str, str, float | None]) -> dict[str, Any]:
    """Figures of one workload under one column, for so many seconds or its own time."""
    name, column, seconds = given
    workload = read(FOLDER / f"{name}.json")
    if seconds is not None:
        workload = replace(workload, time_s=seconds)
    played = COLUMNS[column].play(workload)
    return {"workload": name, "column": column, "units": played.units, **_figures(played, workload.time_s)}


def _figures(played: Played, time_s: float) -> dict[str, Any]:
    """Of classes, and the waits of real-time requests until their first unit began."""
    waits = [
        np.array(played.wait_ns[one.played.task.id], np.int64)
        for one in played.outcomes
        if one.played.task.klass == "realtime"
    ]
    joined = np.concatenate(waits) if waits else np.zeros(0, np.int64)
    waited = {f"wait_{title}_ms": percentile(joined, share) for title, share in (("p50", 0.5), ("p99", 0.99))}
    tasks = {one["task"]: one["mean_ms"] for one in report.by_task(played.outcomes, time_s)}
    return {"classes": report.by_class(played.outcomes, time_s), **waited, "task_mean_ms": tasks}


def queue(given: tuple[str, int, float]) -> dict[str, Any]:
    """REEF's Figure 15: ResNet best effort in stages of so many kernels, alone and with real-time VGG at random."""
    name, kernels, seconds = given
    column = replace(COLUMNS[name], kernels=kernels)
    bulk = Task("resnet152_be", Load("continuous"), "resnet152", klass="best_effort")
    random = Task("vgg19_rt", Load("poisson", 20.0), "vgg19")
    alone = column.play(Workload("alone", min(seconds, 5.0), (bulk,)))
    both = _figures(column.play(Workload("both", seconds, (random, bulk))), seconds)
    return {
        "column": name, "kernels": kernels, "execution_ms": float(alone.outcomes[0].latency_ns.mean()) / 1e6,
        "wait_p50_ms": both["wait_p50_ms"], "wait_p99_ms": both["wait_p99_ms"],
        "longest_stage_ms": max(network("resnet152").stages(kernels)) / 1e6,
        "realtime_mean_ms": both["classes"]["realtime"]["mean_ms"],
    }  # fmt: skip


def turnaround(seconds: float | None) -> dict[str, Any]:
    """A under `seq` with clients that launch after the next unit has been chosen: what assumption 5 decides."""
    workload = read(FOLDER / "A.json")
    if seconds is not None:
        workload = replace(workload, time_s=seconds)
    return _figures(COLUMNS["seq"].play(workload, prompt=False), workload.time_s)


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, help="virtual seconds of each run [the workload's own]")
    parser.add_argument("--columns", default=",".join(COLUMNS), help=f"some of [{','.join(COLUMNS)}]")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"some of [{','.join(WORKLOADS)}]")
    parser.add_argument("--processes", type=int, default=2, help="processes [2]")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    for name, known in (("columns", COLUMNS), ("workloads", WORKLOADS)):
        given = getattr(chosen, name).split(",")
        if unknown := [one for one in given if one not in known]:
            parser.error(f"{name}: expected some of {', '.join(known)}, got {unknown[0]!r}")
        setattr(chosen, name, given)
    if chosen.columns[0] != next(iter(COLUMNS)):
        parser.error(f"columns: expected {next(iter(COLUMNS))} first, which the others are compared with")
    if chosen.seconds is not None and not chosen.seconds > 0:
        parser.error(f"seconds: expected above 0, got {chosen.seconds:g}")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    networks = [
        {**asdict(one), "kernel_us": [min(one.kernel_ns()) / _US, max(one.kernel_ns()) / _US]} for one in NETWORKS
    ]
    settings = {
        "launch_us": LAUNCH_US, "shared": SHARED, "spread": SPREAD, "kernels": KERNELS, "seconds": chosen.seconds,
        "queue_s": chosen.seconds or QUEUE_S, "networks": networks,
        "columns": {name: COLUMNS[name].title for name in chosen.columns}, "workloads": chosen.workloads,
    }  # fmt: skip
    data: Data = {"settings": settings}
    swept = [name for name in SWEPT if name in chosen.columns]
    for key, work, given in (
        ("cells", cell, [(name, column, chosen.seconds) for name in chosen.workloads for column in chosen.columns]),
        ("queues", queue, [(name, kernels, chosen.seconds or QUEUE_S) for name in swept for kernels in QUEUES]),
        ("turnaround", turnaround, [chosen.seconds]),
    ):
        data[key] = []
        for found in spread(work, given, chosen.processes):
            data[key].append(found)
            run.say(f"{key}: {len(data[key])} of {len(given)}")
    return data


EXPERIMENT = Experiment(
    "disb-simulated", "loadtest.disb.simulated", __doc__, measure, simulated_page.write, options_of, check
)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
