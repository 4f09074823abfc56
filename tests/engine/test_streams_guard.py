"""A whole engine over a guarded device of streams: bulk work through captured stages, and calls that come in between.

The same tests run on CUDA where there is a GPU (test_cuda.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import numpy as np
import pytest
from runtimes import HostRuntime

from app.engine.devices.base import Completion, DeviceOptions, Job
from app.engine.devices.factory import worker_specs
from app.engine.devices.streams.device import StreamDevice
from app.engine.devices.streams.runtime import Runtime
from app.engine.engine import Engine
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.scheduler.scheduler import Scheduler

from .rig import answers, ask, make_model, rows_of
from .test_streams_boundaries import assert_settled, staged, sums, total
from .test_streams_engine import Linear, crowd, started

GUARD = DeviceOptions(guard=True, keeps_one=True)


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    with HostRuntime() as runtime:
        yield runtime


class Watched(StreamDevice):
    """Notes what units it was handed, and how many stages each made."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__(runtime, worker_specs((4, 4), GUARD), GUARD)
        self.jobs: dict[int, Job] = {}
        self.made: dict[int, int] = {}

    def start(self, report, launched=None, freed=None) -> None:
        def noted(completion: Completion) -> None:
            self.made[completion.outcome.unit_id] = completion.outcome.steps
            report(completion)

        super().start(noted, launched, freed)

    def push(self, worker: int, job: Job) -> None:
        self.jobs[job.unit_id] = job
        super().push(worker, job)


@asynccontextmanager
async def serving(runtime: Runtime) -> AsyncIterator[tuple[Engine, Watched]]:
    device = Watched(runtime)
    async with Engine(Profiling(device), Scheduler(device.spec)) as engine:
        yield engine, device
        assert engine.lost is None


async def bulk(served: ServedModel, calls: int) -> None:
    async def one(number: int) -> None:
        values = rows_of(float(number), number + 0.25)
        answer = await ask(served, values, klass="best_effort")
        assert np.array_equal(answer.outputs[0], answers(values))

    await asyncio.gather(*(one(number) for number in range(calls)))


async def test_real_time_calls_beside_guarded_bulk_work(runtime: Runtime):
    async with serving(runtime) as (engine, device):
        served = await started(engine, staged(name="staged"))
        assert served.executor.goes_on
        await bulk(served, 10)
        assert max(device.made.values()) == 3, "a unit goes through all stages by itself"
        for wave in range(5):
            await asyncio.gather(bulk(served, 20), crowd(served, 100 * wave, 10))
        for unit, job in device.jobs.items():
            if unit >= 0 and device.made[unit] < job.steps:
                assert job.recalled
        assert_settled(served)


async def test_what_has_no_captured_stages_is_served_as_ever(runtime: Runtime):
    async with serving(runtime) as (engine, _):
        whole = await started(engine, make_model(Linear(), name="whole", max_batch=4))
        cell = await started(engine, sums(9, name="cell"))
        assert [served.executor.goes_on for served in (whole, cell)] == [False, False]
        values = np.ones((2, 9), np.float32)
        got = await asyncio.gather(crowd(whole, 0, 20), *(total(cell, values) for _ in range(5)))
        assert got[1:] == [[9, 9]] * 5
