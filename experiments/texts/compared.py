"""Texts that are compared, served and by the library: `python -m experiments.texts.compared`. Writes texts.md.

A 6-layer encoder makes vectors, another scores documents for a query; texts are as long as GLUE's. Two servers differ
in how they fill batches only: by length, as `adaptive` does, and by count (`reorder = false`). Beside them
sentence-transformers, which sorts the texts of a call by length and runs them in batches of 32. First all texts are
given at once, then many clients each send requests of their own; the library runs these one after another. Needs
`pip install sentence-transformers`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.common.live import serving
from experiments.common.loads import Answers, post, run_once
from experiments.policies.lengths import GLUE
from experiments.texts.tasks import TASKS, Array, Task
from loadtest.common import command
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page, ms
from loadtest.common.servers import MeasurementError, Server
from loadtest.generator.run import in_loop

#: Lines of `[batching]`, by way.
WAYS = {"by length": 'policy = "adaptive"', "by count": 'policy = "adaptive"\nreorder = false'}
LIBRARY = "sentence-transformers"
BODIES = 128  # different requests of many clients
_TIMEOUT_S = 120.0
_CLOSE = 1e-3  # how far values may lie apart: both are FP32


def all_at_once(ask: Callable[[Sequence[str]], Array], given: Sequence[str]) -> float:
    """Seconds until the library or a server has answered one call of all texts."""
    began = time.perf_counter()
    ask(given)
    return time.perf_counter() - began


def asked(server: Server, task: Task, given: Sequence[str]) -> Array:
    """One request. Raises MeasurementError if it is not answered."""
    status, _, body = server.call(
        "POST", task.path, task.body(given), {"Content-Type": "application/json"}, timeout_s=_TIMEOUT_S
    )
    if status != 200:
        raise MeasurementError(f"{task.path}: status {status}: {body[:200]!r}")
    return task.values(json.loads(body))


async def many_clients(port: int, task: Task, bodies: Sequence[bytes], clients: int, seconds: float) -> Array:
    """Latencies in ms of what so many clients in a closed loop are answered within the time."""
    payloads = [post(task.path, port, body) for body in bodies]
    found = await run_once(
        payloads, port, Answers(), seconds, None, 0, connections=clients, timeout_s=_TIMEOUT_S
    )  # fmt: skip
    if found.faults:
        raise MeasurementError(f"{task.path}: {found.faults[0]}")
    return found.latency_ns[found.in_time] / 1e6


def one_by_one(
    ask: Callable[[Sequence[str]], Array], bodies: Sequence[Sequence[str]], clients: int, seconds: float
) -> Array:
    """As `many_clients`, of a library that runs one call after another: a call waits for those of all other clients."""
    took: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        took.append(all_at_once(ask, bodies[len(took) % len(bodies)]) * 1e3)
    if len(took) < clients:
        raise MeasurementError(f"{LIBRARY}: {len(took)} calls in {seconds:g} s: give more --seconds")
    return np.convolve(took, np.ones(clients), "valid")


class Scene:
    """The models' folders by way, profiles, and the library's models, in a folder of their own."""

    def __init__(self, chosen: argparse.Namespace, folder: Path) -> None:
        self.chosen = chosen
        self.folder = folder
        for way, batching in WAYS.items():
            for task in TASKS:
                self.source(way, task).mkdir(parents=True)
                task.save(self.source(way, task), batching)

    def source(self, way: str, task: Task) -> Path:
        return self.folder / way.replace(" ", "-") / task.name

    def profile(self, task: Task) -> None:
        """Measure batch times into the folder where both servers look for them."""
        command.profile(task.name, self.source("by length", task), self.folder / "profiles", self.chosen.budget)

    def flags(self, way: str) -> Sequence[str]:
        models = [word for task in TASKS for word in ("--model", f"{task.name}={self.source(way, task)}")]
        return (*models, "--threads", "1", "--profile-dir", str(self.folder / "profiles"), "--profile-budget-s", "0")


def figures_of(task: Task, scene: Scene, servers: dict[str, Server], run: Run) -> dict[str, Any]:
    """Of each way: rows per second of all texts at once, and of many clients with their latencies, by round."""
    chosen = scene.chosen
    library = task.library(scene.source("by length", task))
    given = task.texts(chosen.texts, chosen.lengths, chosen.seed)
    asks: dict[str, Callable[[Sequence[str]], Array]] = {
        **{way: partial(asked, server, task) for way, server in servers.items()}, LIBRARY: library,
    }  # fmt: skip
    expected = library(given[:64])
    for way, ask in asks.items():
        if (apart := float(np.abs(ask(given[:64]) - expected).max())) > _CLOSE:
            raise MeasurementError(f"{task.name}, {way}: values are {apart:.2g} from those of {LIBRARY}")
    clients = max(1, chosen.clients // task.rows)
    requests = [task.texts(task.rows, chosen.lengths, chosen.seed + 1 + index) for index in range(BODIES)]
    bodies = [task.body(texts) for texts in requests]
    once: dict[str, list[float]] = {way: [] for way in asks}
    many: dict[str, list[Array]] = {way: [] for way in asks}
    for _ in range(chosen.rounds):
        for way, ask in asks.items():
            once[way].append(len(given) / all_at_once(ask, given))
            if way == LIBRARY:
                many[way].append(one_by_one(library, requests, clients, chosen.seconds))
            else:
                many[way].append(in_loop(many_clients(servers[way].port, task, bodies, clients, chosen.seconds)))
            run.say(f"{task.name}, {way}: {once[way][-1]:.0f} rows/s at once")
    return {
        "rows": task.rows, "clients": clients, "once": once,
        "many": {way: clients_figures(found, clients * task.rows) for way, found in many.items()},
    }  # fmt: skip


def clients_figures(rounds: Sequence[Array], rows: int) -> dict[str, Any]:
    """By round rows per second, of clients that wait for so many rows at any time: Little's law. Latencies of all."""
    latencies = np.concatenate(rounds)
    return {
        "rows_per_s": [rows * 1e3 / float(found.mean()) for found in rounds],
        "mean_ms": float(latencies.mean()), "p50_ms": float(np.percentile(latencies, 50)),
        "p99_ms": float(np.percentile(latencies, 99)),
    }  # fmt: skip


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name:
        scene = Scene(chosen, Path(name))
        for task in TASKS:
            scene.profile(task)
        run.say("batch times are measured")
        with serving({way: scene.flags(way) for way in WAYS}) as servers:
            tasks = {task.name: figures_of(task, scene, servers, run) for task in TASKS}
    settings = {
        "texts": chosen.texts, "lengths": chosen.lengths, "seconds": chosen.seconds, "rounds": chosen.rounds,
    }  # fmt: skip
    return {"settings": settings, "tasks": tasks}


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--texts", type=int, default=512, help="given at once [512]")
    parser.add_argument("--clients", type=int, default=64, help="that wait for a row each, or fewer for several [64]")
    parser.add_argument("--seconds", type=float, default=4.0, help="of many clients, each round [4]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--lengths", default=GLUE, help=f"tokens of a row [{GLUE}]")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds to measure a model's batch times [10]")
    parser.add_argument("--seed", type=int, default=0, help="[0]")


def missed(data: Data) -> list[str]:
    """By length is no slower than by count with many clients, and has no higher 99th percentile."""
    lines = []
    for name, task in data["tasks"].items():
        length, count = task["many"]["by length"], task["many"]["by count"]
        if median(length["rows_per_s"]) < median(count["rows_per_s"]):
            lines.append(f"{name}: fewer rows/s by length than by count")
        if length["p99_ms"] > count["p99_ms"]:
            lines.append(f"{name}: 99 % {ms(length['p99_ms'])} ms by length, {ms(count['p99_ms'])} ms by count")
    return lines


PAGE = Page("texts", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.texts.compared", __doc__, measure, options)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
