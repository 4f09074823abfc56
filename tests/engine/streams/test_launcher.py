"""A model that blocks the thread that launches it holds up no other, and is launched after its rows' copies."""

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

from app.contract import UNBOUNDED, Model
from app.engine.device import Completion, DeviceOptions, Job
from app.engine.profiling.warmup import try_batch
from app.engine.streams.device import StreamDevice
from app.engine.streams.executor import StreamExecutor
from app.scheduler.types import Fault, WorkerSpec

from ..rig import answers, make_model, rows_of, tensor
from .bench import Double
from .stepped import Stepped
from .worlds import Affine, fixed, made, warmed


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


def test_a_model_whose_outputs_have_no_bound_pins_memory_on_a_launcher_of_its_own() -> None:
    device = Stepped(FakeRuntime(), (4,))
    outputs = [tensor("y", "FP32", ("m", UNBOUNDED))]
    executor = device.open(make_model(Double(), outputs=outputs, max_batch=4), 4)
    assert isinstance(executor, StreamExecutor)
    assert executor.launcher is not None


@pytest.mark.parametrize("graphs", [True, False])
def test_a_model_that_waits_for_the_device_does_not_hold_up_others(graphs: bool, caplog) -> None:
    """The gate opens when another model's unit has ended: in vain if that waits for the gate."""
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    runtime = InlineRuntime()
    device = StreamDevice(runtime, (WorkerSpec(2),), DeviceOptions(graphs=graphs))
    device.start(reports.put)
    reads = Reads(runtime)
    other, blocking = (
        opened(device, make_model(Double(), max_batch=2)),
        opened(device, make_model(reads, name="reads", max_batch=2)),
    )
    assert (other.launcher, other.graphs, blocking.graphs) == (None, graphs, False)
    assert "model reads: runs without CUDA graphs, launched by a thread of its own" in caplog.text
    reads.armed = True
    device.push(0, Job(1, blocking, [0], 1))
    assert reads.reached.wait(10)
    device.push(0, Job(2, other, [0], 1))
    assert reports.get(timeout=10).outcome.unit_id == 2
    reads.opened.set()
    completion = reports.get(timeout=10)
    assert completion.ran is not None
    assert np.array_equal(completion.ran.outputs[0], answers(rows_of(3.0)))
    assert device.close(10)


def test_a_launcher_ends_with_its_model() -> None:
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    runtime = InlineRuntime()
    device = StreamDevice(runtime, (WorkerSpec(2),))
    device.start(reports.put)
    executor = opened(device, make_model(Reads(runtime), max_batch=2))
    assert executor.launcher is not None
    thread = executor.launcher.thread
    device.push(0, Job(1, executor, [0], 1))
    device.free(executor)
    assert reports.get(timeout=10).outcome.error is None  # what was pushed before
    thread.join(10)
    assert not thread.is_alive()
    assert device.dead() is None
    assert device.close(10)


def test_closing_waits_for_every_launcher() -> None:
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    runtime = InlineRuntime()
    device = StreamDevice(runtime, (WorkerSpec(2),))
    device.start(reports.put)
    reads = Reads(runtime)
    executor = opened(device, make_model(reads, max_batch=2))
    reads.armed = True
    device.push(0, Job(1, executor, [0], 1))
    assert reads.reached.wait(10)
    assert not device.close(0.01)
    reads.opened.set()
    assert device.close(10)
    assert reports.get(timeout=10).outcome.unit_id == 1


class Waits(Affine):
    """Cannot be captured: it waits for the device, which it does before it looks at its rows."""

    def __init__(self, runtime: FakeRuntime) -> None:
        super().__init__()
        self.runtime = runtime

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.runtime.refuse_in_capture()
        return super().forward(x)


@given(seed=st.integers(0, 2**32 - 1), length=st.integers(1, 300))
@settings(max_examples=20, deadline=None)
def test_units_are_launched_behind_the_copies_of_their_rows(seed: int, length: int) -> None:
    runtime = FakeRuntime(seed)
    world = warmed(fixed(Stepped(runtime, (4, 2)), model=Waits(runtime)), [])
    assert world.executor.launcher is not None
    for _ in range(length):
        world.act()
    world.settle()
    assert {unit.fault for unit in world.units} <= {None}
    assert isinstance(world.device.dead(), type(None))


def test_a_model_that_fails_in_its_own_launcher_fails_alone() -> None:
    runtime = FakeRuntime()
    world = fixed(Stepped(runtime, (4,)), model=Waits(runtime))
    usual = world.rows
    try_batch(world.device, world.executor, 1, {})
    world.bad = {101.0: Fault.MODEL}
    world.rows = lambda number: usual(-1.0 if number in world.bad else number)
    for _ in range(100):
        world.act()
    world.settle()
    assert world.device.dead() is None


def test_a_model_that_was_never_tried_is_launched_by_a_thread_of_its_own() -> None:
    """It may block, or be compiled: made-up rows may be none that it takes."""
    world = fixed(Stepped(FakeRuntime(), (4,)))
    assert world.executor.launcher is None
    for _ in range(50):
        world.act()
    world.settle()
    assert world.executor.launcher is not None


def test_rows_of_any_length_are_put_together_by_a_launcher_of_the_models_own() -> None:
    device = Stepped(FakeRuntime(), (4,))
    assert made(device, UNBOUNDED).executor.launcher is not None
    assert made(device, 4).executor.launcher is None
