"""A model that blocks the thread that launches it holds up no other worker, and is launched after its rows' copies."""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime, InlineRuntime
from torch import nn

from app.contract import Model
from app.engine.device import Completion, DeviceOptions, Job
from app.engine.streams.device import StreamDevice
from app.engine.streams.executor import StreamExecutor
from app.scheduler.types import WorkerSpec

from ..rig import answers, make_model, rows_of
from .bench import Double
from .stepped import Stepped
from .worlds import Affine, fixed, try_batch, warmed


class Reads(nn.Module):
    """y = 2 x + 1. Reads a value, which waits for the device; once armed, the next wait is a long one."""

    def __init__(self, runtime: InlineRuntime) -> None:
        super().__init__()
        self.runtime = runtime
        self.armed = False
        self.reached, self.opened = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runtime.synchronize(self.runtime.event())
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.opened.wait(10)
        return x * 2 + 1


def opened(device: StreamDevice, model: Model) -> StreamExecutor:
    """Loaded, tried, and with a row of 3 in its first slot."""
    executor = device.open(model, 4)
    assert isinstance(executor, StreamExecutor)
    try_batch(device, executor, 2, {})
    executor.pool.write(executor.pool.take(1), 0, rows_of(3.0))
    device.arrive(executor, [0])
    return executor


@pytest.mark.parametrize("graphs", [True, False])
def test_a_model_that_waits_for_the_device_does_not_hold_up_other_workers(graphs: bool, caplog) -> None:
    """The gate opens when another worker's unit has ended: in vain if that waits for the gate."""
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    runtime = InlineRuntime()
    device = StreamDevice(runtime, (WorkerSpec(2), WorkerSpec(2)), DeviceOptions(graphs=graphs))
    device.start(reports.put)
    reads = Reads(runtime)
    other, blocking = (
        opened(device, make_model(Double(), max_batch=2)),
        opened(device, make_model(reads, name="reads", max_batch=2)),
    )
    assert (other.graphs, blocking.graphs) == (graphs, False)
    assert ("model reads: runs without CUDA graphs" in caplog.text) == graphs
    reads.armed = True
    device.push(0, Job(1, blocking, [0], 1))
    assert reads.reached.wait(10)
    device.push(1, Job(2, other, [0], 1))
    assert reports.get(timeout=10).outcome.unit_id == 2
    assert not device.close(0.01)
    reads.opened.set()
    completion = reports.get(timeout=10)
    assert completion.ran is not None
    assert np.array_equal(completion.ran.outputs[0], answers(rows_of(3.0)))
    assert device.close(10)


class Waits(Affine):
    """Cannot be captured: it waits for the device, which it does before it looks at its rows."""

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__()
        self.runtime = runtime

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runtime.refuse_in_capture()
        return super().forward(x)


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 300))
@settings(max_examples=20)
def test_a_model_that_cannot_be_captured_serves_without_graphs(seed: int, length: int) -> None:
    runtime = FakeRuntime(seed)
    world = warmed(fixed(Stepped(runtime, (4, 2)), model=Waits(runtime)), [])
    for _ in range(length):
        world.act()
    world.settle()
    assert {unit.fault for unit in world.units} <= {None}
    assert world.device.dead() is None
