"""DISB on a model of REEF's GPU, in virtual time: `python -m experiments.disb.simulated`.

REEF's five models in kernels (see `modelled` and `gpu`), DISB's workloads A to E and REAL, and a column for each preset
of the scheduler's classes; REEF's study of its queue: what a best-effort request takes, and until when real time has
the GPU to itself, by how many kernels a stream is handed; and what becomes of two workloads when what the model takes
for granted is changed. Writes docs/bench/disb-simulated.md, .json and a plot.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from app.bench.stats import percentile
from app.scheduler.forming.presets import PRESETS
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import ClassSpec, DeviceSpec, Program, WorkerSpec
from experiments.common.processes import spread
from experiments.disb import simulated_page
from experiments.disb.generate import FOLDER
from experiments.disb.gpu import LAUNCH_US, LEFT, SHARED, ModelledGpu, Sharing
from experiments.disb.modelled import NETWORKS, SLOWER, SPREAD, WHOLE, network, pairs
from experiments.disb.reef_n import ReefN
from experiments.disb.virtual import Played, Server, play
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.disb.figures import by_class, by_task
from loadtest.disb.workload import Klass, Load, Task, Workload, read

SECONDS = 5.0  # virtual, of each run
WORKLOADS = ("A", "B", "B-repository", "C", "D", "E", "REAL")
QUEUES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
QUEUE_S = 1.5
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

    `kernels` of a best-effort unit or stage; WHOLE: all. `multi_step`: a worker takes the stages of a unit one after
    another by itself until it is recalled. `queue`, `withdraws`: see `ModelledGpu`. Where best-effort requests have
    parts there is a worker for each of their clients, and one that is kept.
    """

    title: str
    preset: str
    kernels: int = WHOLE
    queue: int = 0
    withdraws: bool = False
    multi_step: bool = False
    only: Klass | None = None
    budget_ns: int = 10_000_000
    slowdown: float = 0.02

    def play(self, workload: Workload, seed: int = 0, assumed: Assumed | None = None) -> Played:
        """Play the workload on a new device."""
        assumed = assumed or Assumed()
        tasks = workload.tasks if self.only is None else workload.only(self.only).tasks
        programs = self._programs(tasks)
        slower = {
            (own.id, other.id): part
            for (one, two), part in pairs(assumed.slower).items()
            for own in programs.get((one, "realtime"), ())[:1]
            for other in programs.get((two, "best_effort"), ())[:1]
        }
        PRESETS["reef_n"] = ReefN
        scheduler = Scheduler(self._device(workload.tasks, len(tasks)))
        if assumed.pads:
            scheduler.pair(slower, 0)
        sharing = Sharing(assumed.shared, assumed.left, self.parts, assumed.yields, slower)
        times = {
            program.id: network(program.name).groups(self.kernels if klass == "best_effort" else WHOLE)
            for (_, klass), (program, _) in programs.items()
        }
        gpu = ModelledGpu(
            times,
            frozenset(program.id for program, length in programs.values() if length),
            sharing,
            self.queue,
            withdraws=self.withdraws,
        )
        server = Server(scheduler, programs, gpu, round(LAUNCH_US * _US), assumed.prompt)
        return play(replace(workload, tasks=tasks), server, seed, {task.id: alone_ns(task) for task in tasks})

    @property
    def parts(self) -> bool:
        """Whether best-effort requests run in parts, and streams have priorities."""
        return self.preset in ("reef", "reef_n")

    def _programs(self, tasks: Sequence[Task]) -> dict[tuple[str, str], tuple[Program, int]]:
        """By model and class: a program, and the length of its rows, 0 where they are no steps of a cell."""
        found: dict[tuple[str, str], tuple[Program, int]] = {}
        for model, klass in dict.fromkeys((task.model, task.klass) for task in tasks):
            number, kernels = len(found) + 1, self.kernels if klass == "best_effort" else WHOLE
            if kernels == WHOLE or self.multi_step:
                found[model, klass] = network(model).staged(number, kernels), 0
            else:
                found[model, klass] = network(model).stepped(number, kernels), len(network(model).groups(kernels))
        return found

    def _device(self, tasks: Sequence[Task], playing: int) -> DeviceSpec:
        workers = playing if self.preset == "streams" else 1
        if self.parts:
            workers = 1 + sum(task.klass == "best_effort" for task in tasks)
        return DeviceSpec(
            tuple(WorkerSpec(1) for _ in range(workers)), max_running=workers, multi_step=self.multi_step,
            classes=ClassSpec(self.preset, self.budget_ns, self.slowdown),
        )  # fmt: skip


#: By name, in the order of the page. The first is what the others are compared with.
COLUMNS = {
    "rt_only": Column("real time alone, one request at a time", "seq", only="realtime"),
    "rt_workers": Column("real time alone on the workers of `reef`", "reef", 1, multi_step=True, only="realtime"),
    "seq": Column("whole models, one at a time, real time first", "seq"),
    "streams": Column("whole models, a stream for each client, no classes", "streams"),
    "reef": Column("best-effort work is preempted between kernels, and pads", "reef", 1, multi_step=True),
    "reef_1": Column("the same, where padding may slow real time by 1 %", "reef", 1, multi_step=True, slowdown=0.01),
    "reef_n": Column("real time waits for 4 kernels of each stream", "reef_n", 4),
}
_MUCH_NS = 1_000_000_000  # a budget that the number of kernels keeps below
#: The ways to hand over so many kernels, of the queue's study.
QUEUED: Mapping[str, Callable[[int], Column]] = {
    "withdrawn": lambda count: Column("", "reef", 1, count, withdraws=True, multi_step=True, budget_ns=_MUCH_NS),
    "waited for": lambda count: Column("", "reef", 1, count, multi_step=True, budget_ns=_MUCH_NS),
    "a stage": lambda count: Column("", "reef", count, budget_ns=_MUCH_NS),
    "recalled": lambda count: Column("", "reef", count, multi_step=True, budget_ns=_MUCH_NS),
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


def queue(given: tuple[str, int, float]) -> dict[str, Any]:
    """REEF's Figure 15: ResNet best effort with so many kernels handed over, alone and with real-time VGG at random."""
    name, kernels, seconds = given
    column, assumed = QUEUED[name](kernels), Assumed(pads=False)
    bulk = Task("resnet152_be", Load("continuous"), "resnet152", klass="best_effort")
    random = Task("vgg19_rt", Load("poisson", 50.0), "vgg19")
    alone = column.play(Workload("alone", min(seconds, 0.2), (bulk,)), 0, assumed)
    both = column.play(Workload("both", seconds, (random, bulk)), 0, assumed)
    preempt = np.array(both.preempt_ns, np.int64)
    return {
        "way": name, "kernels": kernels, "execution_ms": float(alone.outcomes[0].latency_ns.mean()) / 1e6,
        "preempt_p50_ms": percentile(preempt, 0.5), "preempt_p99_ms": percentile(preempt, 0.99),
        "met": len(preempt), "withdrawn": both.withdrawn,
        "steps": alone.steps / len(alone.outcomes[0].latency_ns),
        "realtime_mean_ms": float(both.outcomes[0].latency_ns.mean()) / 1e6,
    }  # fmt: skip


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=SECONDS, help="virtual seconds of each run [5]")
    parser.add_argument("--columns", default=",".join(COLUMNS), help=f"some of [{','.join(COLUMNS)}]")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help=f"some of [{','.join(WORKLOADS)}]")
    parser.add_argument("--processes", type=int, default=2, help="processes [2]")


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
        "seconds": chosen.seconds, "queue_s": min(chosen.seconds, QUEUE_S), "varied_s": min(chosen.seconds, VARIED_S),
        "networks": networks, "columns": {name: COLUMNS[name].title for name in chosen.columns},
        "workloads": chosen.workloads, "pairs": [[*pair, part] for pair, part in pairs(SLOWER).items()],
    }  # fmt: skip
    data: Data = {"settings": settings}
    for key, work, given in (
        ("cells", cell, [(name, column, chosen.seconds) for name in chosen.workloads for column in chosen.columns]),
        ("queues", queue, [(name, kernels, settings["queue_s"]) for name in QUEUED for kernels in QUEUES]),
        ("varied", varied, [(name, how, settings["varied_s"]) for how in VARIATIONS for name in VARIED]),
    ):
        data[key] = []
        for found in spread(work, given, chosen.processes):
            data[key].append(found)
            run.say(f"{key}: {len(data[key])} of {len(given)}")
    return data


EXPERIMENT = Experiment(simulated_page.PAGE, "experiments.disb.simulated", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
