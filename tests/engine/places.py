"""Devices that the same whole engine is tried on: threads of a CPU, streams that replay graphs, and streams without.

The streams are threads, too; on a GPU `streams/test_cuda.py` runs the same tests.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from app.contract import Model
from app.engine.cpu.device import CpuDevice
from app.engine.device import Device, DeviceOptions
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.engine.streams.device import StreamDevice
from app.errors import ClientGone
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import WorkerSpec

from .conformance.world import Trips
from .rig import answers, ask, rows_of

KINDS = ("cpu", "graphs", "eager")
PATIENCE_S = 120  # with a test that would wait for ever: an error on the loop answers no call


@dataclass
class Place:
    """One kind of device, with workers of 4, 2 and 1 rows."""

    kind: str
    runtime: Any

    @property
    def graphs(self) -> bool:
        return self.kind == "graphs"

    def device(self, **options: Any) -> Device:
        asked = DeviceOptions(graphs=self.graphs, **options)
        if self.kind == "cpu":
            return CpuDevice((4, 2, 1), threads=1, cores=2, options=asked)
        host = CpuDevice((4, 2, 1), threads=1, cores=2)
        return StreamDevice(self.runtime, tuple(WorkerSpec(n) for n in (4, 2, 1)), asked, host)

    @asynccontextmanager
    async def serving(self, **options: Any) -> AsyncIterator[Engine]:
        device = self.device(**options)
        async with asyncio.timeout(PATIENCE_S), Engine(Profiling(device), Scheduler(device.spec)) as engine:
            yield engine
            assert engine.driver.lost is None
        assert device.close(10)

    @asynccontextmanager
    async def serves(self, model: Model, **options: Any) -> AsyncIterator[ServedModel]:
        async with self.serving(**options) as engine:
            served = await engine.start(model)
            yield served
            assert served.pool.used == 0


@asynccontextmanager
async def on_cpu(model: Model, *capacities: int, **options: Any) -> AsyncIterator[tuple[Engine, ServedModel]]:
    """An engine on threads of a CPU, a core each, that serves one model; by default one worker of four rows."""
    device = CpuDevice(capacities or (4,), threads=1, cores=len(capacities) or 1)
    engine = Engine(Profiling(device), Scheduler(device.spec), **options)
    async with asyncio.timeout(PATIENCE_S), engine:
        yield engine, await engine.start(model)


def captured(served: ServedModel) -> bool:
    """Whether every worker has graphs of the model."""
    memories = getattr(served.executor, "memories", [])
    return bool(memories) and all(memory.graphs for memory in memories)


def only(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("place", kinds, indirect=True)


async def turn() -> None:
    """Let the loop turn once."""
    loop = asyncio.get_running_loop()
    turned = loop.create_future()
    loop.call_soon(turned.set_result, None)
    await turned


async def crowd(served: ServedModel, first: int, calls: int) -> None:
    """Many calls of one to three rows at once; each answer is that of its own rows, also when all others are there."""
    values = [rows_of(*[float(1000 * n + i) for i in range(1 + n % 3)]) for n in range(first, first + calls)]
    for rows, answer in zip(values, await asyncio.gather(*(ask(served, rows) for rows in values)), strict=True):
        assert np.array_equal(answer.outputs[0], answers(rows))


async def answered(served: ServedModel, trips: Trips, first: int, calls: int, *, leave: bool = False) -> None:
    """Many calls of one row at once; each answer is that of its own row. `leave`: one in five goes meanwhile."""

    async def one(number: int) -> None:
        answer = await ask(served, trips.rows(number)[None])
        for got, expected in zip(answer.outputs, trips.expected(number), strict=True):
            assert np.array_equal(got[0], expected), (number, got, expected)

    tasks = [asyncio.create_task(one(number)) for number in range(first, first + calls)]
    for task in tasks[::5] if leave else ():
        await turn()
        task.cancel()
    for at, end in enumerate(await asyncio.gather(*tasks, return_exceptions=True)):
        gone = leave and at % 5 == 0 and isinstance(end, (asyncio.CancelledError, ClientGone))
        assert end is None or gone, end
