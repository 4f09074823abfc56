"""Models come and go: what they hold, and when they let go of it."""

from __future__ import annotations

import gc
import weakref

from runtimes import FakeRuntime

from app.engine.devices.base import DeviceOptions
from app.engine.devices.streams.device import StreamDevice
from app.engine.profiling.warmup import try_batch
from app.scheduler.types import WorkerSpec

from ...rig import make_model
from .bench import Bench, Double, graphs_of


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
        bench.launch()
        assert {graph() for graph in graphs} == {None}
        del bench.executor, bench.pool
        bench.reports.clear()
        assert executor() is None
    finally:
        if collects:
            gc.enable()


def test_streams_of_an_unloaded_model_are_used_again():
    bench = Bench(4, 2, options=DeviceOptions())
    before = len(bench.runtime.streams)
    for _ in range(3):
        bench.device.free(bench.executor)
        bench.launch()
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
