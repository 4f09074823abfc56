"""What a batch is made of: views or copies of slots, padding, graphs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from runtimes import FakeRuntime
from torch import nn

from app.engine.device import DeviceOptions, Job
from app.engine.streams.graphs import Shape

from ..rig import answers, make_model, rows_of, tensor
from .bench import Bench
from .stepped import Stepped
from .worlds import try_batch


def test_a_model_may_write_into_its_inputs():
    class Writes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mul_(2).add_(1)

    bench = Bench(model=Writes())
    try_batch(bench.device, bench.executor, 2, {})
    slots = bench.arrive(3.0, 4.0)
    for unit in range(2):  # run again, as after a failure: from the same rows
        bench.push(slots, unit=unit)
        while bench.device.turn():
            pass
        assert np.array_equal(bench.reports[-1].ran.outputs[0], answers(rows_of(3.0, 4.0)))


IDS, SUM = tensor("ids", "INT64", ("n", 40), pad_value=7), tensor("sum", "INT64")


class Sums(nn.Module):
    """The sum of each row's values that are not padding. Fails on rows of `fails`."""

    def __init__(self, fails: int = 0) -> None:
        super().__init__()
        self.fails = fails
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(ids.shape))
        if ids.shape[1] == self.fails:
            raise ValueError("too long")
        return torch.where(ids == 7, 0, ids).sum(1)


def of_length(model: nn.Module, *, graphs: bool = True) -> Stepped:
    """A device whose reports are `heard`, and an executor with batches of 3 rows tried at length 12."""
    device = Stepped(FakeRuntime(), (4,), DeviceOptions(graphs=graphs))
    device.heard = []
    device.start(device.heard.append)
    device.executor = device.open(make_model(model, [IDS], [SUM], max_batch=4, row_check="refuse"), 8)
    try_batch(device, device.executor, 3, {"n": 12})
    return device


def ran(device: Stepped, *lengths: int) -> list[int]:
    """The sums of a unit of rows of ones, so long."""
    pool = device.executor.pool
    slots = pool.take(len(lengths))
    pool.write(slots, 0, np.full((len(lengths), 40), 99))  # an earlier caller's
    for slot, length in zip(slots, lengths, strict=True):
        pool.set_lengths([slot], {"n": length})
        pool.write([slot], 0, np.ones((1, length), np.int64))
    device.arrive(device.executor, slots)
    device.push(0, Job(0, device.executor, slots, len(slots)))
    while device.turn():
        pass
    pool.give_back(slots)
    return device.heard[-1].ran.outputs[0].tolist()


@pytest.mark.parametrize(("lengths", "padded"), [((1, 2, 3), 10), ((10, 4, 1), 10), ((1, 11, 1), 20), ((40, 1, 1), 40)])
def test_a_batch_is_padded_to_the_next_length_that_was_captured(lengths: tuple[int, ...], padded: int) -> None:
    model = Sums()
    device = of_length(model)
    model.shapes.clear()
    assert ran(device, *lengths) == list(lengths)
    assert model.shapes == [(3, padded)]


def test_without_graphs_a_batch_is_as_long_as_its_longest_row() -> None:
    model = Sums()
    device = of_length(model, graphs=False)
    model.shapes.clear()
    assert ran(device, 1, 11, 3) == [1, 11, 3]
    assert model.shapes == [(3, 11)]


def test_a_shape_in_which_the_model_fails_has_no_graph_and_the_others_do() -> None:
    model = Sums(fails=40)
    device = of_length(model)
    model.shapes.clear()
    assert device.executor.graphs
    assert ran(device, 12, 1, 1) == [12, 1, 1]
    assert model.shapes == [(3, 20)]
    model.shapes.clear()
    assert ran(device, 30, 1, 1) == [30, 1, 1]
    assert model.shapes == [(3, 30)]
    with pytest.raises(ValueError, match="too long"):
        try_batch(device, device.executor, 1, {"n": 40})


def test_trials_return_outputs_of_rows_that_are_padded_no_further_than_the_longest() -> None:
    """Or the row check would compare rows that graphs have padded to one length."""
    lengths: list[int] = []

    class Width(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            lengths.append(ids.shape[1])
            return torch.full((len(ids),), ids.shape[1])

    device = of_length(Width())
    executor = device.executor
    for length in (12, 20):
        executor.pool.write(range(3), 0, np.ones((3, length), np.int64))
        executor.pool.set_lengths(range(3), {"n": length})
        lengths.clear()
        assert device.trial(executor, range(3), 3).outputs[0].tolist() == [length] * 3
        assert 20 in lengths, "its time is that of the graph"


def test_every_graph_runs_before_the_model_serves() -> None:
    model = Sums()
    device = of_length(model)
    (memory,) = device.executor.memories
    shapes = [Shape(4, 40), *(Shape(3, length) for length in (10, 20, 40))]
    assert sorted(memory.graphs.graphs) == sorted(shapes)
    assert all(model.shapes.count(shape) >= 3 for shape in shapes), "an eager run, the capture and a replay"
