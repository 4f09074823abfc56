"""Invariant: whatever rows a step is made with, at whatever steps of their own and whoever fails beside it, a row gets
what it would get alone; in every order of the streams; and nothing is kept of it when it has ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime
from torch import nn

from app.contract import Model
from app.engine.device import Completion, DeviceOptions, Job, Steps
from app.engine.profiling.warmup import warm_up
from app.engine.streams.cells import CellStreamExecutor
from app.models import Recurrent
from app.models.recurrent.cells import recurrent_model
from app.scheduler.types import AT_ONCE

from ..rig import make_model, tensor
from .bench import EAGER
from .stepped import Stepped
from .trips import Trips, World
from .worlds import try_batch

SEEDS = st.integers(0, 2**32 - 1)
BAD = {103: 0, 106: 2, 109: 1, 113: 5}
POISONED = -1000.0


def served(cell: nn.Module, inputs: Any, outputs: Any, state: Any = ((),), most: int | None = None) -> Model:
    made = make_model(None, inputs, outputs, max_batch=4, row_check="refuse")
    call, info = recurrent_model(Recurrent(cell, state, most), made.info)
    return Model(info, call, row_check="refuse")


class Sums(nn.Module):
    """What a row has read, at each of its steps and in all. It writes into its state."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones(()))

    def step(self, x: torch.Tensor, state: Any) -> Any:
        total = state[0].add_(x * self.one)
        if (x == POISONED).any():
            raise ValueError("poisoned")
        return (total, total), (total,)


def sums(bad: dict[int, int] | None = None, bound: int = 6, most: int | None = None) -> Trips:
    """Rows of one to six numbers. A bad one is poisoned at one of its steps."""
    bad = bad or {}
    every = tensor("every", "FP32", ("n", bound)) if most is None else tensor("every", "FP32", ("steps", 0))
    model = served(Sums(), [tensor("x", "FP32", ("n", bound), pad_value=7)], [every, tensor("last", "FP32")], most=most)

    def rows(number: int) -> np.ndarray:
        values = np.arange(number, number + 1 + number % 6, dtype=np.float32)
        if number in bad:
            values = np.arange(number, number + 6, dtype=np.float32)
            values[bad[number]] = POISONED
        return values

    def expected(number: int) -> list[np.ndarray]:
        totals = rows(number)[:most].cumsum()
        return [totals, totals[-1]]

    return Trips(model, rows, expected, lambda number: len(rows(number)[:most]), cells=True, bad=bad)


class Counts(nn.Module):
    """Feeds itself: counts down to 0, and says so. `finish` makes the outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Parameter(torch.ones((), dtype=torch.int64), requires_grad=False)
        self.flags = torch.zeros(64, dtype=torch.bool)

    def start(self, first: torch.Tensor) -> Any:
        return None, (first,)

    def step(self, x: None, state: Any) -> Any:
        flags = self.flags[: len(state[0])].copy_(state[0] == 0)  # its own memory, each time the same
        return state[0], (state[0] - self.one,), flags

    def finish(self, state: Any, ys: torch.Tensor, lengths: torch.Tensor) -> Any:
        if (ys[:, 0] == 40).any():
            raise ValueError("poisoned")
        return ys * 10, state[0] + lengths


def counts(bad: int | None = None) -> Trips:
    """Rows that make one to five steps, or as many as are allowed."""
    outputs = [tensor("every", "INT64", ("steps", 0)), tensor("all", "INT64")]
    model = served(Counts(), [tensor("n", "INT64")], outputs, most=5)

    def first(number: int) -> int:
        return 40 if number == bad else number % 7

    def expected(number: int) -> list[np.ndarray]:
        ran = list(range(first(number), -1, -1))[:5]
        return [np.array(ran) * 10, np.array(ran[-1] - 1 + len(ran))]

    def units(number: int) -> int:
        return min(first(number) + 1, 5)

    return Trips(
        model,
        lambda number: np.array(first(number)),
        expected,
        units,
        cells=True,
        known=False,
        bad={} if bad is None else {bad: 4},
    )


def tried(world: World) -> World:
    for size in range(1, 5):
        try_batch(world.device, world.executor, size, dict.fromkeys(world.executor.axes, 1 + size))
    assert world.executor.steps is not None
    return world


MAKERS: dict[str, Callable[[FakeRuntime], World]] = {
    "eager": lambda runtime: World(Stepped(runtime, (4, 2), EAGER), sums()),
    "graphs": lambda runtime: World(Stepped(runtime, (4, 2)), sums()),
    "three workers": lambda runtime: World(Stepped(runtime, (4, 3, 1)), sums()),
    "shortened": lambda runtime: World(Stepped(runtime, (4, 2)), sums(most=3)),
    "by itself, eager": lambda runtime: World(Stepped(runtime, (4, 2), EAGER), counts()),
    "by itself": lambda runtime: World(Stepped(runtime, (4, 2)), counts()),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(seed=SEEDS)
@settings(max_examples=6)
def test_each_row_gets_its_own_outputs_in_every_order(kind: str, seed: int) -> None:
    world = tried(MAKERS[kind](FakeRuntime(seed)))
    assert world.executor.captured == ("eager" not in kind)
    for _ in range(250):
        world.act()
    world.settle()
    assert world.answered


@pytest.mark.parametrize("options", [EAGER, DeviceOptions()], ids=["eager", "graphs"])
@given(seed=SEEDS)
@settings(max_examples=8)
def test_a_row_that_fails_at_any_step_takes_nobody_with_it(options: DeviceOptions, seed: int) -> None:
    world = tried(World(Stepped(FakeRuntime(seed), (4, 2), options), sums(BAD)))
    for _ in range(300):
        world.act()
    world.settle()
    assert set(world.refused) <= set(BAD)
    assert not set(world.answered) & set(BAD)
    assert world.device.dead() is None


@given(seed=SEEDS)
@settings(max_examples=10)
def test_so_does_one_that_fails_when_it_is_finished(seed: int) -> None:
    world = tried(World(Stepped(FakeRuntime(seed), (4, 2)), counts(bad=104)))
    for _ in range(200):
        world.act()
    world.settle()
    assert set(world.refused) <= {104}
    assert 104 not in world.answered


@given(seed=SEEDS, breaks_at=st.integers(1, 150))
@settings(max_examples=12)
def test_when_the_device_fails_each_unit_is_reported_once(seed: int, breaks_at: int) -> None:
    runtime = FakeRuntime(seed)
    world = tried(World(Stepped(runtime, (4, 2)), counts()))
    runtime.breaks_at = runtime.done + breaks_at
    for _ in range(200):
        world.act()
    world.settle()


class Device:
    """A stepped device with one model, tried, whose first slots hold rows of these numbers."""

    def __init__(self, trips: Trips, *numbers: int, options: DeviceOptions | None = None) -> None:
        self.reports: list[Completion] = []
        self.stepped = Stepped(FakeRuntime(), (4,), options)
        executor = self.stepped.open(trips.model, 8)
        assert isinstance(executor, CellStreamExecutor)
        self.executor = executor
        self.warm = warm_up(self.stepped, executor)
        for slot, number in enumerate(numbers):
            (taken,) = executor.pool.take(1)
            assert taken == slot
            values = trips.rows(number)
            lengths = dict.fromkeys(executor.axes, values.size)
            executor.pool.set_lengths([slot], lengths)
            executor.pool.write([slot], 0, values[None], lengths)
            self.stepped.arrive(executor, [slot])
        self.stepped.start(self.reports.append)

    def run(self, *slots: int) -> Completion:
        self.stepped.push(0, Job(len(self.reports), self.executor, list(slots), len(slots), 0))
        while self.stepped.turn():
            pass
        return self.reports[-1]


def test_only_rows_that_end_are_finished_and_leave_the_device() -> None:
    device = Device(counts(), 5 + 7, 6 + 7, 0 + 7)  # the last one ends at once
    assert device.executor.steps == Steps(5, True)
    finished: list[int] = []
    finish = device.executor.cell.cell.finish
    device.executor.cell.cell.finish = lambda state, *rest: (finished.append(len(state[0])), finish(state, *rest))[1]
    ended = [device.run(0, 1, 2).outcome.ended, *[device.run(0, 1).outcome.ended for _ in range(4)]]
    assert ended == [(2,), (), (), (), (0, 1)]
    assert finished == [1, 2]


def test_a_row_that_says_itself_that_it_ends_does_not_wait_for_the_next_unit() -> None:
    device = Device(counts(), 0 + 7, 5 + 7)  # the first one ends at once
    worker, runtime = device.stepped.workers[0], device.stepped.fake
    device.stepped.push(0, Job(0, device.executor, [0], 1, 0))
    device.stepped.launch()
    never = runtime.event()
    never.mark.fired = False
    runtime.wait(worker.stream, never)  # from here on the stream is somebody else's
    device.stepped.push(0, Job(1, device.executor, [1], 1, 0))
    device.stepped.launch()
    device.stepped.complete_next(0)
    assert device.stepped.dead() is None
    assert device.reports[0].outcome.ended == (0,)


def test_so_do_rows_that_would_need_too_much_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.engine.streams.cells._SLAB_BYTES", 500)
    device = Device(sums(), 103)
    assert (device.executor.steps, device.executor.activations) == (None, None)
    assert "its rows begin and end together: 9 rows under way would take 0 MiB" in caplog.text
    completion = device.run(0)
    assert completion.ran is not None
    assert completion.ran.outputs[1].tolist() == [207]


@pytest.mark.parametrize(
    ("trips", "push_ahead_ns", "under_way"),
    [(sums, 1, [2, 2]), (sums, 0, [1, 1]), (sums, AT_ONCE, [2, 4]), (counts, None, [1, 1])],
    ids=["the next one", "none ahead", "as far as may be", "nobody knows which rows end"],
)
def test_steps_are_launched_ahead_of_the_one_that_runs(
    trips: Callable[[], Trips], push_ahead_ns: int | None, under_way: list[int]
) -> None:
    """At the launch, when nothing is known of how long a step takes, and when the first one has ended."""
    device = Device(trips(), 107 if trips is sums else 6 + 7, options=DeviceOptions(push_ahead_ns=push_ahead_ns))
    device.stepped.push(0, Job(0, device.executor, [0], 1, 0, 5))
    launched, worker = [], device.stepped.workers[0]
    device.stepped.launch()
    launched.append(worker.completer.messages.qsize())
    device.stepped.complete_next(0)
    device.stepped.launch()
    launched.append(worker.completer.messages.qsize())
    assert launched == under_way
    while device.stepped.turn():
        pass
    assert [report.outcome.steps for report in device.reports] == [5]
