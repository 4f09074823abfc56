"""How long a real-time call waits behind best-effort work: `python -m experiments.classes.preemption`.

An encoder of eight layers in 1, 2, 4 and 8 stages, each served by an engine of its own in this process, without HTTP:
one worker of one thread. Best-effort calls of one row always wait; real-time calls of the same model come at random,
one at a time. Measured is the time from a call's arrival to when the worker turns to its unit. The engines take turns.
Writes docs/bench/preemption.json.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from app import process
from app.contract import Array, Klass, Model, ModelCall, ModelSource, Served, awaited
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.executor import CpuExecutor
from app.engine.engine import Engine
from app.engine.executor import Executor, Job, Ran, Stop
from app.engine.pool import Pool
from app.engine.profiling.service import Profiling
from app.models.loading import load
from app.models.placement import AS_LOADED, place
from app.scheduler.scheduler import Scheduler
from experiments.common.folders import vector, write_model
from loadtest.common.experiment import Data, Experiment, Run
from loadtest.common.page import Page
from loadtest.generator.run import in_loop

STAGES = (1, 2, 4, 8)
LAYERS = 8
TOKENS = 16
WAITING = 4  # best-effort calls at any time
SLACK_NS = 1_000_000  # until a call reaches the worker
TINY = {"hidden": 32, "heads": 2, "intermediate": 64}  # of the encoder, to try a run


class Notes:
    """What the worker did. `begun`: when it turned to each first unit of a real-time call, in monotonic ns.

    Of best-effort units, `stages`: by stage, what it took in ns; `starts`: when each stage began, in monotonic ns.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.stages: dict[int, list[int]] = {}
        self.starts: list[int] = []

    def clear(self) -> None:
        self.begun.clear()
        self.stages.clear()
        self.starts.clear()

    def ran(self, job: Job, ran: Ran, ended: int) -> None:
        """A unit has ended at `ended`."""
        if job.klass is Klass.REALTIME:
            return
        times = ran.stages_ns or (ran.infer_ns,)
        at = ended - ran.output_ns - sum(times)
        for stage, spent in enumerate(times, max(0, job.stage)):
            self.stages.setdefault(stage, []).append(spent)
            self.starts.append(at)
            at += spent

    def between(self, first: int, last: int) -> int:
        """Best-effort stages that began after `first` and before `last`."""
        return sum(first < start < last for start in self.starts)

    def longest(self) -> tuple[int, int]:
        """Of the stage whose median is the largest: the median and the 99th percentile, in ns."""
        slowest = max(self.stages.values(), key=median)
        return round(median(slowest)), round(float(np.quantile(slowest, 0.99)))


class _Noting(CpuExecutor):
    notes: Notes

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        if job.klass is Klass.REALTIME and job.stage <= 0:
            self.notes.begun.append(time.monotonic_ns())
        for ran in super().run(job, stop):
            self.notes.ran(job, ran, time.monotonic_ns())
            yield ran


class NotingDevice(CpuDevice):
    """One worker of one thread, which notes what it does."""

    def __init__(self) -> None:
        super().__init__((1,), 1, 2)
        self.notes = Notes()

    def open(self, model: Model, slots: int) -> Executor:
        executor = _Noting(place(model, AS_LOADED), Pool(model.info.client_inputs, slots))
        executor.notes = self.notes
        return executor


def cuts(stages: int) -> list[str]:
    """After which layers the model is cut."""
    each = LAYERS // stages
    return [f"bert.encoder.layer.{end - 1}" for end in range(each, LAYERS, each)]


def write_encoder(folder: Path, stages: int, tiny: bool) -> ModelSource:
    kwargs = {"layers": LAYERS, **(TINY if tiny else {})}
    inputs = [vector(name, TOKENS, datatype="INT64") for name in ("input_ids", "attention_mask")]
    outputs = [vector("embedding", kwargs.get("hidden", 384))]
    path = folder / f"encoder{stages}"
    write_model(
        path, "loadtest.models.encoder.model:build", inputs, outputs,
        batching={"max_batch": 1, "policy": "no_wait"}, kwargs=kwargs, **({"cuts": cuts(stages)} if stages > 1 else {}),
    )  # fmt: skip
    return ModelSource(path.name, 1, path)


class Contender:
    """The model in so many stages, in an engine. `calls` are made of the same tokens."""

    def __init__(self, served: Served, notes: Notes) -> None:
        self._served = served
        self._notes = notes
        random = np.random.default_rng(0)
        self._rows: tuple[Array, ...] = (
            random.integers(0, 30_000, (1, TOKENS)),
            np.ones((1, TOKENS), np.int64),
        )
        self._ended = 0

    async def call(self, klass: Klass) -> None:
        with self._served.lease(ModelCall(1, [*self._rows], klass=klass)) as lease:
            await awaited(lease)

    async def _best_effort(self) -> None:
        while True:
            await self.call(Klass.BEST_EFFORT)
            self._ended += 1

    async def round(self, gaps: Sequence[float], loaded: bool = True) -> dict[str, Any]:
        """One real-time call after each gap. `loaded`: with best-effort work; without, what the call takes alone."""
        notes = self._notes
        clients = [asyncio.create_task(self._best_effort()) for _ in range(WAITING if loaded else 0)]
        waits: list[float] = []
        latencies: list[float] = []
        behind = 0
        try:
            await asyncio.sleep(gaps[0])
            notes.clear()
            self._ended, began = 0, time.monotonic_ns()
            for gap in gaps:
                await asyncio.sleep(gap)
                arrived = time.monotonic_ns()
                await self.call(Klass.REALTIME)
                latencies.append(time.monotonic_ns() - arrived)
                begun = notes.begun[len(waits)]
                waits.append(begun - arrived)
                behind += notes.between(arrived + SLACK_NS, begun)
            passed_s = (time.monotonic_ns() - began) / 1e9
        finally:
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
        found: dict[str, Any] = {"waits_ns": waits, "mean_ms": float(np.mean(latencies)) / 1e6}
        if loaded:
            found["longest_ns"], found["longest_p99_ns"] = notes.longest()
            found["behind"] = behind
            found["per_s"] = self._ended / passed_s
        return found


async def rounds(chosen: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """By number of stages."""
    torch.set_num_threads(1)
    async with AsyncExitStack() as stack:
        contenders: dict[int, Contender] = {}
        for stages in STAGES:
            device = NotingDevice()
            engine = await stack.enter_async_context(Engine(Profiling(device), Scheduler(device.spec)))
            source = write_encoder(folder, stages, chosen.quick)
            model = await asyncio.to_thread(load, source)
            contenders[stages] = Contender(await engine.start(model), device.notes)
            say(f"{stages} stage(s) ready")
        process.tune_garbage_collector()
        random = np.random.default_rng(chosen.seed)
        found: dict[int, dict[str, Any]] = {}
        for stages, contender in contenders.items():
            alone = await contender.round([0.01] * chosen.calls, loaded=False)
            found[stages] = {"alone_ms": alone["mean_ms"], "alone_p99_ns": _p99(alone["waits_ns"]), "rounds": []}
        for number in range(chosen.rounds):
            for stages, contender in contenders.items():
                gaps = random.exponential(chosen.gap_ms / 1e3, chosen.calls).tolist()
                found[stages]["rounds"].append(_summary(await contender.round(gaps)))
            say(f"round {number + 1} of {chosen.rounds}")
    return {str(stages): one for stages, one in found.items()}


def _p99(values: Sequence[int]) -> float:
    return float(np.quantile(values, 0.99))


def _summary(one: Mapping[str, Any]) -> dict[str, Any]:
    """With the waits in microseconds, in order, which the page takes percentiles of."""
    rest = {name: value for name, value in one.items() if name != "waits_ns"}
    return {**rest, "waits_us": sorted(round(wait / 1e3) for wait in one["waits_ns"])}


def options_of(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--calls", type=int, default=100, help="real-time calls of a round [100]")
    parser.add_argument("--rounds", type=int, default=4, help="[4]")
    parser.add_argument("--gap-ms", type=float, default=40.0, help="mean time between two real-time calls [40]")
    parser.add_argument("--seed", type=int, default=0, help="[0]")
    parser.add_argument("--quick", action="store_true", help="a tiny model, two short rounds: to try it")


def check(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> None:
    if chosen.quick:
        vars(chosen).update({"calls": 5, "rounds": 2, "gap_ms": 2.0})
    if chosen.calls < 1 or chosen.rounds < 1:
        parser.error("calls, rounds: expected a number above 0")


def measure(chosen: argparse.Namespace, run: Run) -> Data:
    with tempfile.TemporaryDirectory(prefix="starling-bench-") as name:
        found = in_loop(rounds(chosen, Path(name), run.say))
    settings = {
        "layers": LAYERS, "tokens": TOKENS, "waiting": WAITING, "calls": chosen.calls, "rounds": chosen.rounds,
        "gap_ms": chosen.gap_ms,
    }  # fmt: skip
    return {"settings": settings, "stages": found}


BEYOND_MS = 1.0  # allowed beyond the longest stage


def wait_ms(one: Data, share: float) -> float:
    """A quantile of the waits of all rounds."""
    return float(np.quantile([wait / 1e3 for run in one["rounds"] for wait in run["waits_us"]], share))


def tails_ms(one: Data) -> list[float]:
    """The 99th percentile of the waits of each round."""
    return [float(np.quantile(run["waits_us"], 0.99)) / 1e3 for run in one["rounds"]]


def target_ms(one: Data) -> float:
    """For 99 % of the waits: the median of the longest stage in the rounds that were measured, and a little more."""
    return float(median(run["longest_ns"] for run in one["rounds"]) / 1e6 + BEYOND_MS)


def missed(data: Data) -> list[str]:
    return [
        f"{stages} stage(s): 99 % of the waits are up to {wait_ms(one, 0.99):.2f} ms, not {target_ms(one):.2f}"
        for stages, one in data["stages"].items()
        if wait_ms(one, 0.99) > target_ms(one)
    ]


PAGE = Page("preemption", __name__, missed)
EXPERIMENT = Experiment(PAGE, "experiments.classes.preemption", __doc__, measure, options_of, check)

if __name__ == "__main__":
    sys.exit(EXPERIMENT.main(sys.argv[1:]))
