"""Invariant: whatever the device, a unit pushed is reported exactly once, with its own outputs or with its failure."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from fakes import MS, FakeDevice, VirtualLoop
from runtimes import HostRuntime
from torch import nn

from app.contract import Model
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import Completion, Device, DeviceOptions
from app.engine.executor import Job, Stop
from app.engine.streams.device import StreamDevice
from app.scheduler.types import Fault, WorkerSpec

from ..rig import FATAL, HEAVY, POISON, answers, make_model, raising, rows_of


class OnThreads:
    """A CpuDevice with two workers."""

    def __init__(self) -> None:
        self.device = self.make()
        self._reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
        self.device.start(self._reports.put)

    def make(self) -> Device:
        return CpuDevice((4, 2), threads=1, cores=2)

    def next(self) -> Completion:
        return self._reports.get(timeout=10)

    def end(self) -> list[Completion]:
        """Close; what was reported and not asked for."""
        assert self.device.close(10)
        return [self._reports.get() for _ in range(self._reports.qsize())]


class OnVirtualTime:
    """A FakeDevice with two workers."""

    def __init__(self) -> None:
        self._loop = VirtualLoop()
        self.device: Device = FakeDevice(self._loop, 4, 2)
        self._reports: deque[Completion] = deque()
        self.device.start(self._reports.append)

    def next(self) -> Completion:
        while not self._reports:
            self._loop.run_until_complete(self._loop.passes(MS))
        return self._reports.popleft()

    def end(self) -> list[Completion]:
        if self._loop.is_closed():
            return []
        self._loop.run_until_complete(self._loop.passes(1_000 * MS))
        assert self.device.close(10)
        self._loop.close()
        assert self._loop.failures == []
        return list(self._reports)


class OnStreams(OnThreads):
    """A StreamDevice with two workers, whose streams are threads. Models that are no modules run on the CPU."""

    def make(self) -> Device:
        self.runtime = HostRuntime()
        return StreamDevice(self.runtime, (WorkerSpec(4), WorkerSpec(2)), host=super().make())

    def end(self) -> list[Completion]:
        rest = super().end()
        self.runtime.__exit__()
        return rest


class Module(nn.Module):
    def __init__(self, call) -> None:
        super().__init__()
        self.forward = call


class AsModules(StreamDevice):
    """Every model is a module, so that none runs on the CPU."""

    def open(self, model: Model, slots: int) -> CpuExecutor:
        return super().open(replace(model, call=Module(model.call)), slots)


class OnStreamsAlone(OnStreams):
    def make(self) -> Device:
        self.runtime = HostRuntime()
        return AsModules(self.runtime, (WorkerSpec(4), WorkerSpec(2)), DeviceOptions(graphs=False))


@pytest.fixture(params=[OnThreads, OnVirtualTime, OnStreams, OnStreamsAlone])
def bench(request) -> Iterator[OnThreads | OnVirtualTime]:
    made = request.param()
    yield made
    assert made.end() == []


#: Where a worker may end by itself; what ends a stream's worker is the end of the device.
ON_THREADS = pytest.mark.parametrize("bench", [OnThreads, OnVirtualTime, OnStreams], indirect=True)


def loaded(bench, *values: float, model: Model | None = None) -> CpuExecutor:
    """An executor whose slots hold these rows."""
    executor = bench.device.open(model or make_model(), 8)
    executor.pool.write(executor.pool.take(len(values)), 0, rows_of(*values))
    return executor


def run(bench, executor: CpuExecutor, *slots: int, unit: int = 1, worker: int = 0) -> Completion:
    bench.device.push(worker, Job(unit, executor, slots, len(slots)), Stop())
    return bench.next()


def test_a_model_in_stages_can_run_whole(bench):
    executor = loaded(bench, 10.0, 11.0, model=make_model(stages=[lambda x: x * 2, lambda x: x + 1]))
    assert np.array_equal(run(bench, executor, 1, 0).ran.outputs[0], answers(rows_of(11.0, 10.0)))


def test_workers_work_side_by_side(bench):
    """Letting them begin changes nothing, whether they have something to begin or not."""
    bench.device.wait_until_begun()
    executor = loaded(bench, 10.0, 11.0, 12.0)
    bench.device.push(0, Job(1, executor, range(2), 2), Stop())
    bench.device.wait_until_begun()
    bench.device.push(1, Job(2, executor, [2], 1), Stop())
    bench.device.wait_until_begun()
    both = sorted((bench.next(), bench.next()), key=lambda completion: completion.outcome.unit_id)
    assert [completion.worker for completion in both] == [0, 1]
    assert np.array_equal(both[1].ran.outputs[0], answers(rows_of(12.0)))


@pytest.mark.parametrize(
    ("value", "fault", "message"),
    [(POISON, Fault.MODEL, "ValueError: poisoned"), (HEAVY, Fault.OOM, "MemoryError: too heavy")],
)
def test_a_failure_is_reported_and_the_worker_goes_on(bench, value: float, fault: Fault, message: str):
    executor = loaded(bench, value, 10.0)
    completion = run(bench, executor, 0, 1, unit=7)
    assert (completion.outcome.unit_id, completion.outcome.error, completion.message) == (7, fault, message)
    assert (completion.ran, bench.device.dead()) == (None, None)
    completion = run(bench, executor, 1)
    assert completion.outcome.error is None
    assert completion.outcome.compute_ns == completion.ran.busy_ns > 0


def test_an_error_whose_own_text_fails_ends_no_worker(bench):
    class Mute(Exception):
        def __str__(self) -> str:
            raise SystemExit

    executor = loaded(bench, 10.0, model=make_model(raising(Mute())))
    assert {run(bench, executor, 0, unit=unit).message for unit in range(2)} == {"Mute: (it cannot be shown)"}


@ON_THREADS
def test_the_end_of_a_worker_is_reported_and_said(bench):
    executor = loaded(bench, FATAL, 10.0)
    assert bench.device.dead() is None
    completion = run(bench, executor, 0)
    assert (completion.outcome.error, completion.worker) == (Fault.DEVICE, 0)
    assert completion.message == "GeneratorExit: the model asked for it"
    assert run(bench, executor, 1, unit=2, worker=1).outcome.error is None  # the other one lives
    bench.device.push(0, Job(3, executor, [1], 1), Stop())  # and this is never heard of again
    assert bench.end() == []
    assert bench.device.dead() == "worker 0 has died"


def test_grad_is_off(bench):
    seen: list[bool] = []
    model = make_model(lambda x: seen.append(torch.is_inference_mode_enabled()) or x)
    run(bench, loaded(bench, 10.0, model=model), 0)
    assert set(seen) == {True}
