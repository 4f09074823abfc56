"""Models come and go: what they hold, and when they let go of it."""

from __future__ import annotations

import gc
import queue
import threading
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime, HostRuntime, InlineRuntime
from torch import nn

from app.engine.device import Completion, DeviceOptions, Job
from app.engine.streams.device import StreamDevice
from app.engine.streams.graphs import Shape
from app.errors import ConfigError
from app.scheduler.types import Fault, WorkerSpec

from ..rig import answers, make_model, rows_of
from .bench import Bench, Double, graphs_of
from .stepped import Stepped
from .worlds import fixed, try_batch, warmed


class Gate(nn.Module):
    """y = 2 x + 1. Once armed, its next batch waits at the gate."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = False
        self.reached, self.opened = threading.Event(), threading.Event()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.armed:
            self.armed = False
            self.reached.set()
            assert self.opened.wait(10)
        return x * 2 + 1


@pytest.mark.parametrize("where", ["first run", "capture"])
def test_loading_does_not_hold_up_units_of_other_models(where: str) -> None:
    """The gate opens when another model's unit has ended: in vain if that waits for the gate."""
    reports: queue.SimpleQueue[Completion] = queue.SimpleQueue()
    with HostRuntime() as runtime:
        device = StreamDevice(runtime, (WorkerSpec(2),))
        device.start(reports.put)
        serving, gate = device.open(make_model(Double(), max_batch=2), 4), Gate()
        try_batch(device, serving, 2, {})
        loading = device.open(make_model(gate, name="loading", max_batch=2), 4)
        capture = runtime.capture

        def captured(*args: Any) -> Any:
            gate.armed = where == "capture"
            return capture(*args)

        runtime.capture = captured  # type: ignore[method-assign]
        gate.armed = where == "first run"
        trial = threading.Thread(target=try_batch, args=(device, loading, 2, {}), daemon=True)
        trial.start()
        assert gate.reached.wait(10)
        serving.pool.write(serving.pool.take(1), 0, rows_of(3.0))
        device.push(0, Job(7, serving, [0], 1))
        assert reports.get(timeout=10).outcome.unit_id == 7
        gate.opened.set()
        trial.join(10)
        assert [sorted(memory.graphs.graphs) for memory in loading.memories] == [[Shape(2)]]
        assert device.close(10)


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_units_are_launched_and_end_while_a_capture_is_open(seed: int) -> None:
    """In any order; the runtime notices work on a stream that graphs are captured on."""
    world = warmed(fixed(Stepped(FakeRuntime(seed), (4, 2))))

    class Beside(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(20):
                world.act()
            return x * 2 + 1

    loading = world.device.open(make_model(Beside(), name="loading", max_batch=4), 8)
    for size in (1, 4):
        try_batch(world.device, loading, size, {})
    assert any(unit.reports for unit in world.units)
    world.settle()


def test_a_batch_runs_first_on_the_thread_that_loads() -> None:
    """Compiling takes up to minutes, and other models' units wait in the launcher's queue."""
    calls: list[tuple[str, int]] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((threading.current_thread().name, len(x)))
            return x * 2 + 1

    device = StreamDevice(InlineRuntime(), (WorkerSpec(4),), DeviceOptions(graphs=False))
    device.start(lambda completion: None)
    executor = device.open(make_model(Sees(), max_batch=4), 8)
    for size in (4, 4, 3):
        try_batch(device, executor, size, {})
    loader, launcher = threading.current_thread().name, device.workers[0].launcher.thread.name
    launched = [(launcher, 4)] * 2
    assert calls == [(loader, 4), *launched, *launched, (loader, 3), (launcher, 3), (launcher, 3)]
    assert device.close(10)


def test_a_device_that_fails_while_a_model_is_loaded_is_lost_at_once() -> None:
    bench = Bench(options=DeviceOptions())
    bench.runtime.breaks_at = bench.runtime.done + 3
    with pytest.raises(torch.AcceleratorError):
        try_batch(bench.device, bench.executor, 1, {})
    assert "illegal memory access" in (bench.device.dead() or "")


class Slow(nn.Module):
    """Takes 20 ms a row by its own clock, and its first batch much longer, as if it were compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.now += 20_000_000 * len(x) if self.now else 10**12
        return x * 2 + 1


def test_batches_that_take_long_have_no_graphs() -> None:
    model = Slow()
    device = Stepped(FakeRuntime(), (4,), clock=lambda: model.now)
    executor = device.open(make_model(model, max_batch=4), 8)
    for size in range(1, 5):
        try_batch(device, executor, size, {})
    (memory,) = executor.memories
    assert set(memory.graphs.graphs) == {Shape(1), Shape(2)}


def test_a_batch_that_no_worker_takes_is_refused() -> None:
    bench = Bench(2)
    with pytest.raises(ConfigError, match="model 'm': no worker takes a batch of 3 rows"):
        try_batch(bench.device, bench.executor, 3, {})


def test_the_largest_batch_is_captured_first() -> None:
    """Its memory serves the others."""
    captured: list[int] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bench.runtime.captures:
                captured.append(len(x))
            return x * 2 + 1

    bench = Bench(options=DeviceOptions(), model=Sees())
    for size in (1, 2):
        try_batch(bench.device, bench.executor, size, {})
    assert captured == [4, 1, 2]


def test_an_unloaded_model_goes_at_once():
    """The collector may have been told to leave alone what was there when the first models had loaded."""
    bench = Bench(4, 2, options=DeviceOptions())
    try_batch(bench.device, bench.executor, 4, {})
    bench.push(bench.arrive(3.0))
    while bench.device.turn():
        pass
    executor, graphs = weakref.ref(bench.executor), [weakref.ref(graph) for graph in graphs_of(bench.executor)]
    assert graphs
    assert bench.reports
    collects = gc.isenabled()
    gc.disable()
    try:
        bench.device.free(bench.executor)
        while bench.device.turn():
            pass
        assert {graph() for graph in graphs} == {None}
        del bench.executor, bench.pool
        bench.reports.clear()
        assert executor() is None
    finally:
        if collects:
            gc.enable()


@given(seed=st.integers(0, 2**32 - 1), units=st.integers(0, 4))
@settings(max_examples=20)
def test_a_model_may_be_unloaded_whatever_is_in_flight(seed: int, units: int) -> None:
    """What was pushed before runs to its end with all that it needs; what is pushed later fails, and nothing else."""
    bench = Bench(2, 2, options=DeviceOptions(), seed=seed)
    for size in (1, 2):
        try_batch(bench.device, bench.executor, size, {})
    pushed = {}
    for unit in range(units):
        values = (10.0 + unit, 20.0 + unit)
        bench.push(bench.arrive(*values), worker=unit % 2, unit=unit)
        pushed[unit] = rows_of(*values)
    for _ in range(bench.runtime.random.randrange(30)):
        bench.device.turn()
    graphs = [list(map(weakref.ref, memory.graphs.graphs.values())) for memory in bench.executor.memories]
    bench.device.free(bench.executor)
    bench.push([0], unit=99)
    while bench.device.turn():
        for worker, of_worker in zip(bench.device.workers, graphs, strict=True):
            busy = worker.stream.work or worker.out.work
            assert all(graph() is not None for graph in of_worker) or not busy
    assert sorted(report.outcome.unit_id for report in bench.reports) == [*pushed, 99]
    for report in bench.reports:
        unit = report.outcome.unit_id
        if unit == 99:
            assert (report.outcome.error, report.message) == (Fault.MODEL, "RuntimeError: the model has been unloaded")
        else:
            assert np.array_equal(report.ran.outputs[0], answers(pushed[unit]))
    assert {graph() for of_worker in graphs for graph in of_worker} == {None}
    assert bench.device.dead() is None


def test_streams_of_an_unloaded_model_are_used_again():
    bench = Bench(4, 2, options=DeviceOptions())
    before = len(bench.runtime.streams)
    for _ in range(3):
        bench.device.free(bench.executor)
        while bench.device.turn():
            pass
        bench.executor = bench.device.watched_executor(make_model(Double(), max_batch=4), 8)
    assert len(bench.runtime.streams) == before


def test_streams_have_the_priority_of_their_worker():
    runtime = FakeRuntime()
    device = StreamDevice(runtime, (WorkerSpec(4, -1), WorkerSpec(4)))
    device.open(make_model(Double(), max_batch=4), 8)
    in_stream, loading, captures = [0], [0], [-1, 0]
    of_workers = [-1, -1, 0, 0]  # to compute on and for results
    assert [stream.priority for stream in runtime.streams] == in_stream + of_workers + loading + captures
    assert device.close(10)
