"""A replay runs while the results of the one before it leave, and writes over none of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtimes import FakeRuntime

from app.engine.device import DeviceOptions
from app.engine.streams.graphs import Piece, Shape, WorkerGraphs

from ..rig import answers, rows_of
from .bench import Bench, raising
from .worlds import try_batch


def test_a_replay_does_not_wait_until_the_results_before_it_have_left() -> None:
    bench = Bench(options=DeviceOptions())
    try_batch(bench.device, bench.executor, 2, {})
    for unit, values in enumerate([(3.0, 4.0), (5.0, 6.0)]):
        bench.push(bench.arrive(*values), unit=unit)
    bench.launch()
    worker = bench.device.workers[0]
    second = worker.completer.messages.latest
    assert second is not None
    bench.run(bench.arrivals)
    bench.run(worker.stream)
    assert second.block.computed.mark.fired, "the second unit waits for the results of the first"
    assert not second.block.aside.mark.fired, "the buffer is still being read"
    assert worker.out.work, "the results of the first have not left"
    while bench.device.turn():
        pass
    for completion, values in zip(bench.reports, [(3.0, 4.0), (5.0, 6.0)], strict=True):
        assert np.array_equal(completion.ran.outputs[0], answers(rows_of(*values)))


def test_the_wait_for_the_buffer_is_not_the_models_time() -> None:
    bench = Bench(options=DeviceOptions())
    try_batch(bench.device, bench.executor, 1, {})
    for unit in range(2):
        bench.push(bench.arrive(3.0), unit=unit)
    bench.launch()
    worker = bench.device.workers[0]
    bench.run(bench.arrivals)
    bench.run(worker.stream)
    bench.run(worker.out)
    bench.run(worker.stream)
    bench.run(worker.out)
    for _ in range(2):
        bench.device.complete_next(0)
    first, second = (completion.ran for completion in bench.reports)
    assert first.infer_ns == second.infer_ns


def test_outputs_are_set_aside_in_one_buffer_that_grows() -> None:
    graphs = WorkerGraphs(None, None)
    small = [torch.ones(1, 3), torch.ones(1, 2, dtype=torch.int64)]
    large = [torch.full((4, 3), 2.0), torch.full((4, 2), 2, dtype=torch.int64)]
    for outputs in (small, large, small):
        graphs.add(Shape(len(outputs[0])), [Piece(lambda: None, outputs)], FakeRuntime().empty)
    memory = {
        shape: {one.untyped_storage().data_ptr() for one in graph.aside} for shape, graph in graphs.graphs.items()
    }
    assert len(memory[Shape(4)]) == 1, "the outputs of a batch lie side by side"
    assert memory[Shape(1)] == memory[Shape(4)], "a graph that was captured after the buffer has grown uses it as it is"
    for graph in graphs.graphs.values():
        graph.set_aside()
        for output, aside in zip(graph.outputs, graph.aside, strict=True):
            assert torch.equal(output, aside)
            assert aside.is_contiguous()


def test_a_graph_without_memory_for_its_results_stays_with_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph that goes takes its stream's workspace from those that were captured there before."""
    bench = Bench(options=DeviceOptions())
    monkeypatch.setattr(bench.runtime, "empty", raising(torch.OutOfMemoryError("full")))
    try_batch(bench.device, bench.executor, 2, {})
    (memory,) = bench.executor.memories
    assert memory.graphs is not None
    assert memory.graphs.graphs == {}
    assert 0 < len(memory.graphs.kept) == len(bench.executor.without_graph)
