"""What a batch is made of: views or copies of slots, padding, graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtimes import FakeRuntime
from torch import nn

from app.engine.devices.base import DeviceOptions
from app.engine.devices.streams.device import StreamDevice
from app.engine.profiling.warmup import try_batch
from app.scheduler.types import WorkerSpec

from ...rig import answers, make_model, rows_of, tensor
from .bench import EAGER, Bench, Double


def test_a_model_that_leaves_its_inputs_alone_reads_them_where_they_are():
    for options in (EAGER, DeviceOptions()):
        bench = Bench(options=options)
        try_batch(bench.device, bench.executor, 4, {})
        assert not bench.executor.copies
    seen: list[int] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(x.untyped_storage().data_ptr())
            return x * 2 + 1

    bench = Bench(model=Sees())
    try_batch(bench.device, bench.executor, 4, {})
    seen.clear()
    bench.push(bench.arrive(3.0, 4.0))
    while bench.device.turn():
        pass
    assert seen == [bench.pool.rows[0].untyped_storage().data_ptr()]


def test_a_model_that_writes_into_its_inputs_gets_copies():
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).add_(1)

    bench = Bench(model=Writes())
    try_batch(bench.device, bench.executor, 2, {})
    assert bench.executor.copies
    slots = bench.arrive(3.0, 4.0)
    for unit in range(2):  # run again, as after a failure: from the same rows
        bench.push(slots, unit=unit)
        while bench.device.turn():
            pass
        assert np.array_equal(bench.reports[-1].ran.outputs[0], answers(rows_of(3.0, 4.0)))


def test_a_batch_is_told_slots_and_lengths() -> None:
    executor = StreamDevice(FakeRuntime(), (WorkerSpec(4),)).open(
        make_model(Double(), [tensor("x", "FP32", ("n", 60))], max_batch=4), 6
    )
    executor.pool.set_lengths([5], {"n": 50})
    executor.pool.set_lengths([2], {"n": 7})
    table = np.zeros((2, 4), np.int64)
    executor.tell([5, 2], 3, table)
    assert table.tolist() == [[5, 2, 2, 0], [50, 7, 7, 0]]
    assert executor.longest([2, 5]) == {"n": 50}


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (1, [1]),
        (5, [1, 2, 3, 4, 5]),
        (16, [*range(1, 17)]),
        (40, [*range(1, 17), 32, 40]),
        (64, [*range(1, 17), 32, 64]),
    ],
)
def test_sizes_that_are_captured(largest: int, sizes: list[int]):
    assert Bench().executor.sizes(largest) == sizes


def test_a_size_without_a_graph_is_padded_to_the_next():
    shapes: list[int] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.append(len(x))
            return x * 2 + 1

    bench = Bench(options=DeviceOptions(), model=Sees())
    try_batch(bench.device, bench.executor, 4, {})
    shapes.clear()
    bench.push(bench.arrive(3.0, 4.0, 5.0))
    while bench.device.turn():
        pass
    assert shapes == [4]
    assert np.array_equal(bench.reports[-1].ran.outputs[0], answers(rows_of(3.0, 4.0, 5.0)))
