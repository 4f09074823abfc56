"""What a boundary between two stages costs: `python -m experiments.stages.boundary` one row through 4 stages and 1.

The same network, whole and cut, in turn. `direct`: the scheduler and the executor on one thread, as they are called for
each unit, without threads or an event loop. `served`: the engine with a worker's thread, a request awaited at a time; a
cut costs one more turn through the loop and the worker's queue. It prints medians in microseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from statistics import median

import numpy as np
import torch
from torch import nn

from app.contract import Batching, Model, ModelInfo, TensorSpec
from app.engine.cpu.device import CpuDevice
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.models import Staged
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, DeviceSpec, Klass, Outcome, Program, Row, Stage, WorkerSpec

WIDTH = 64
ROW = np.ones((1, WIDTH), np.float32)


def network(stages: int) -> Model:
    """As many linear layers as stages; cut into them."""
    spec = TensorSpec("x", "FP32", (WIDTH,), ("",), (WIDTH,))
    torch.manual_seed(0)
    staged = Staged([nn.Linear(WIDTH, WIDTH) for _ in range(stages)]).eval()
    info = ModelInfo("net", "1", "bench", (spec,), (replace(spec, name="y"),), Batching(max_batch=4, policy="no_wait"))
    return Model(info, staged, row_check="off", stages=staged.stages, again=staged.again)


def whole(model: Model) -> Model:
    """The same, in one piece."""
    return replace(model, stages=(), again=())


class Direct:
    """Scheduler and executor on the caller's thread."""

    def __init__(self, model: Model) -> None:
        self._executor = CpuDevice((4,), 1, 1).open(model, 8)
        self._slots = self._executor.pool.take(1)
        self._executor.pool.write(self._slots, 0, ROW)
        self._scheduler = Scheduler(DeviceSpec((WorkerSpec(4),)))
        self._scheduler.add_program(Program(0, "net", tuple(Stage() for _ in model.stages or (0,)), "no_wait"), 0)
        self._number = 0

    def once(self) -> int:
        """Nanoseconds of one call."""
        begin = time.perf_counter_ns()
        now, scheduler, executor = begin, self._scheduler, self._executor
        self._number += 1
        row = Row(self._slots[0])
        scheduler.submit(Call(self._number, 0, [row], Klass.REALTIME, 1, now, None), now)
        step = scheduler.step(now)
        while step.start:
            (unit,) = step.start
            ran = executor.run([row.slot for row in unit.rows], unit.size, unit.stage)  # type: ignore[attr-defined]
            scheduler.finished(Outcome(unit.id, None, ran.busy_ns), now)
            step = scheduler.step(now)
        if executor.activations is not None:
            executor.activations.let_go(self._slots)
        assert step.done
        return time.perf_counter_ns() - begin


def direct(models: list[Model], count: int) -> list[float]:
    """Median microseconds of a call by each model, in turn."""
    runs = [Direct(model) for model in models]
    with torch.inference_mode():
        return _medians([[run.once() for run in runs] for _ in range(count)])


async def served(models: list[Model], count: int) -> list[float]:
    """The same through an engine."""
    device = CpuDevice((4,), 1, 1)
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        opened = [await engine.start(model) for model in models]
        rounds: list[list[int]] = []
        for _ in range(count):
            times = []
            for one in opened:
                begin = time.perf_counter_ns()
                with one.lease(1) as lease:
                    lease.write(0, ROW)
                    await lease.run()
                times.append(time.perf_counter_ns() - begin)
            rounds.append(times)
        return _medians(rounds)


def _medians(rounds: list[list[int]]) -> list[float]:
    """The first tenth warms up."""
    return [median(times) / 1e3 for times in zip(*rounds[len(rounds) // 10 :], strict=True)]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m experiments.stages.boundary", description=__doc__)
    parser.add_argument("--stages", type=int, default=4, help="[4]")
    parser.add_argument("--calls", type=int, default=5000, help="of each model [5000]")
    chosen = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model = network(chosen.stages)
    for name, found in (
        ("direct", direct([whole(model), model], chosen.calls)),
        ("served", asyncio.run(served([whole(model), model], chosen.calls))),
    ):
        cut = (found[1] - found[0]) / (chosen.stages - 1)
        print(f"{name}: whole {found[0]:.1f} us, {chosen.stages} stages {found[1]:.1f} us, a cut {cut:.1f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
