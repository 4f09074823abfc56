"""Invariant: whatever the device, a unit of several steps ends well with as many of them as have run well, each row is
reported once when it ends, and what other units do with the rest of its rows is right.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from app.contract import Model
from app.engine.device import Completion, Device, DeviceOptions, Job
from app.engine.executor import Executor
from app.engine.streams.device import StreamDevice
from app.models import Recurrent
from app.scheduler.types import Fault, WorkerSpec

from ..rig import CountDown, make_model, recurrent, rows_of, tensor
from .test_units import OnStreams, OnThreads, bench_of


class WithoutGraphs(OnStreams):
    def make(self) -> Device:
        return StreamDevice(self.runtime, (WorkerSpec(4), WorkerSpec(2)), DeviceOptions(graphs=False))


@pytest.fixture(params=[OnThreads, OnStreams, WithoutGraphs], ids=["cpu", "graphs", "eager"])
def bench(request: Any) -> Iterator[OnThreads]:
    yield from bench_of(request.param)


class Stage(nn.Module):
    """y = 2 x; fails where a row's first value is `bad`."""

    def __init__(self, bad: float | None) -> None:
        super().__init__()
        self.two = nn.Parameter(torch.tensor(2.0))
        self.bad = bad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.bad is not None and bool((x[:, 0] == self.bad).any()):
            raise ValueError("poisoned")
        return x * self.two


class Sums(nn.Module):
    """What a row has read at each step, added up; fails on -1."""

    def __init__(self, looks: bool) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))
        self.looks = looks

    def step(self, x: torch.Tensor, state: Any) -> Any:
        if self.looks and bool((x == -1).any()):
            raise ValueError("poisoned")
        total = state[0] + x * self.one
        return total, (total,)


class Unit:
    """Units of one worker and model, one at a time."""

    def __init__(self, bench: Any, model: Model) -> None:
        self.bench = bench
        self.executor: Executor = bench.device.open(model, 8)
        self._units = 0

    def tried(self) -> Unit:
        """As before it serves: with graphs, where there are such."""
        for size in range(1, 5):
            self.bench.device.trial(self.executor, range(size), size)
        return self

    def push(self, slots: list[int], stage: int = 0, steps: int = 1, **options: Any) -> Completion:
        """The first report of a unit."""
        recalled = options.pop("recalled", False)
        job = Job(self._units, self.executor, slots, len(slots), stage, steps, **options)
        job.recalled = recalled
        self._units += 1
        self.bench.device.push(0, job)
        return self.next()

    def next(self) -> Completion:
        return self.bench.next()  # type: ignore[no-any-return]


def staged(bench: Any, *values: float, bad: float | None = None) -> Unit:
    """Four stages, of which the third fails on `bad`."""
    stages = [Stage(None), Stage(None), Stage(None if bad is None else 4 * bad), Stage(None)]
    unit = Unit(bench, make_model(stages=stages, max_batch=4))
    pool = unit.executor.pool
    pool.write(range(4), 0, rows_of(*[1.0] * 4))
    unit.tried()
    pool.write(pool.take(len(values)), 0, rows_of(*values))
    return unit


def summing(bench: Any, *rows: list[float], looks: bool = False) -> Unit:
    unit = Unit(
        bench, recurrent(Recurrent(Sums(looks), ((),)), [tensor("x", "FP32", ("n", 12))], [tensor("y", "FP32")])
    )
    pool = unit.executor.pool
    pool.take(4)

    def write(slot: int, values: list[float]) -> None:
        pool.set_lengths([slot], {"n": len(values)})
        pool.write([slot], 0, np.array([values], np.float32), {"n": len(values)})

    for slot in range(4):
        write(slot, [1.0])
    unit.tried()
    for slot, values in enumerate(rows):
        write(slot, values)
    return unit


def outputs(completion: Completion) -> list[Any]:
    assert completion.ran is not None, completion.message
    found: list[Any] = completion.ran.outputs[0].tolist()
    return found


def test_a_unit_passes_through_stages_and_others_take_its_rows_on(bench: Any) -> None:
    unit = staged(bench, 1.0, 2.0, 3.0)
    completion = unit.push([0, 1, 2], steps=3)
    assert completion.ran is not None
    assert (completion.outcome.error, completion.outcome.steps, completion.ran.outputs) == (None, 3, [])
    assert len(completion.outcome.times) == len(completion.ran.stages_ns) == 3
    assert np.array_equal(outputs(unit.push([2, 0], 3)), rows_of(3.0, 1.0) * 16)
    assert np.array_equal(outputs(unit.push([1], 3)), rows_of(2.0) * 16)


def test_a_unit_ends_well_before_a_stage_that_fails(bench: Any) -> None:
    unit = staged(bench, 1.0, 7.0, 3.0, bad=7.0)
    assert unit.push([0, 1, 2], steps=4).outcome.steps == 2
    failed = unit.push([0, 1, 2], 2, 2)
    assert (failed.outcome.error, failed.message) == (Fault.MODEL, "ValueError: poisoned")
    assert np.array_equal(outputs(unit.push([0, 2], 2, 2)), rows_of(1.0, 3.0) * 16)
    assert unit.push([1], 2).outcome.error is Fault.MODEL


def test_a_unit_that_is_recalled_ends_with_its_first_stage(bench: Any) -> None:
    unit = staged(bench, 1.0)
    assert unit.push([0], steps=4, recalled=True).outcome.steps == 1
    assert np.array_equal(outputs(unit.push([0], 1, 3)), rows_of(1.0) * 16)


def test_a_unit_of_a_cell_ends_with_its_first_row_and_another_takes_on_the_rest(bench: Any) -> None:
    unit = summing(bench, [1, 2], [3, 4, 5], [6, 7])
    completion = unit.push([0, 1, 2], steps=2)
    assert (completion.outcome.steps, completion.outcome.ended, completion.outcome.continues) == (2, (0, 2), False)
    assert outputs(completion) == [3, 13]
    completion = unit.push([1], steps=1)
    assert (completion.outcome.ended, outputs(completion)) == ((0,), [12])


def test_a_unit_continues_without_rows_that_end(bench: Any) -> None:
    unit = summing(bench, [1] * 9, [2] * 2, [3] * 5)
    found = [unit.push([0, 1, 2], steps=2, continue_without=True), unit.next(), unit.next()]
    assert [one.outcome.ended for one in found] == [(1,), (1,), (0,)], "of the rows that it still has"
    assert [one.outcome.steps for one in found] == [2, 3, 4]
    assert [one.outcome.continues for one in found] == [True, True, False]
    assert [outputs(one) for one in found] == [[4], [15], [9]]


def test_a_unit_of_a_cell_that_is_recalled_ends_with_its_first_step(bench: Any) -> None:
    unit = summing(bench, [1] * 9)
    assert unit.push([0], steps=9, recalled=True, continue_without=True).outcome.steps == 1
    assert outputs(unit.push([0], steps=8)) == [9]


def test_a_unit_ends_well_before_a_step_that_fails(bench: Any) -> None:
    unit = summing(bench, [1] * 9, [1, 1, 1, -1, 1], looks=True)
    completion = unit.push([0, 1], steps=5, continue_without=True)
    assert (completion.outcome.error, completion.outcome.steps, completion.outcome.ended) == (None, 3, ())
    assert unit.push([0, 1], steps=2).outcome.error is Fault.MODEL
    assert outputs(unit.push([0], steps=6)) == [9], "nobody has lost a step, and nobody has made one twice"
    assert unit.push([1], steps=1).outcome.error is Fault.MODEL


def test_a_cell_ends_rows_by_itself(bench: Any) -> None:
    declared = Recurrent(CountDown(), ((),), 10)
    unit = Unit(bench, recurrent(declared, [tensor("n", "INT64")], [tensor("y", "INT64", ("w", 0))]))
    unit.executor.pool.write(unit.executor.pool.take(4), 0, np.array([3, 1, 20, 0]))
    unit.tried()
    found = [unit.push([0, 1, 2], steps=10, continue_without=True)]
    while found[-1].outcome.continues:
        found.append(unit.next())
    assert [one.outcome.steps for one in found] == [2, 2, 6]
    assert [outputs(one) for one in found] == [[[1, 0]], [[3, 2, 1, 0]], [list(range(20, 10, -1))]]
