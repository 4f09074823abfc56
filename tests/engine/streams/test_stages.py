"""Invariant: whatever batches a row comes through its stages in, whatever order streams run in and whoever fails
beside it, it gets the outputs of its own values; and nothing is kept of it when it has ended.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime

from app.contract import UNBOUNDED, Array
from app.engine.activations import Activations
from app.engine.device import Completion, DeviceOptions, Job
from app.engine.streams.executor import StreamExecutor

from ..rig import make_model, rows_of, tensor
from .bench import EAGER
from .stepped import Stepped
from .trips import Trips, World
from .worlds import try_batch

SEEDS = st.integers(0, 2**32 - 1)
BAD = {103: 0, 106: 1, 110: 2, 113: 3, 116: 1}


def fixed(bad: dict[int, int] | None = None) -> Trips:
    """y = x + 4 in four stages. The second writes into its argument; the last compares what came which way."""
    bad = bad or {}

    def look(x: torch.Tensor, stage: int) -> None:
        if any(bad.get(int(number) - stage) == stage for number in x[:, 0].tolist()):
            raise ValueError("poisoned")

    def first(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        look(x, 0)
        return x + 1, x * 10

    def second(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        look(x.add_(1) - 1, 1)
        return x, y

    def third(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        look(x, 2)
        return x + 1, y

    def fourth(x: torch.Tensor, y: torch.Tensor, again: torch.Tensor) -> torch.Tensor:
        look(x, 3)
        return x + 1 + (y - again * 10) + (x - 3 - again)

    model = make_model(stages=[first, second, third, fourth], again=[(), (), (), (0,)], max_batch=4)
    return Trips(
        model,
        lambda number: np.array([number, number + 0.5], np.float32),
        lambda number: [np.array([number + 4, number + 4.5], np.float32)],
        lambda number: 4,
        bad=bad,
    )


def variable(bound: int = 4) -> Trips:
    """Rows of one to four numbers; padding is not 0 and is masked at the end, by a mask and by a context."""

    def first(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return x * 2

    def second(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def third(x: torch.Tensor, mask: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
        return (x * mask * half * 2).sum(1, keepdim=True)

    x, y = tensor("x", "FP32", ("n", bound), pad_value=7), tensor("y", "FP32", 1)
    mask = tensor("mask", "FP32", ("n", bound), mask_of="x")
    model = make_model(
        None,
        [x, mask],
        [y],
        stages=[first, second, third],
        again=[(), (), (1, 2)],
        context=lambda x, mask: (mask / 2,),
        max_batch=4,
        length_buckets=(1, 2),
        row_check="refuse",
    )
    return Trips(
        model,
        lambda number: np.full(number % 4 + 1, number, np.float32),
        lambda number: [np.array([(2 * number + 1) * (number % 4 + 1)], np.float32)],
        lambda number: 3,
    )


def tried(world: World) -> World:
    """As a model is before it serves."""
    for size in range(1, 5):
        try_batch(world.device, world.executor, size, dict.fromkeys(world.executor.axes, 1 + size % 4))
    return world


MAKERS: dict[str, Callable[[FakeRuntime], World]] = {
    "eager": lambda runtime: tried(World(Stepped(runtime, (4, 2), EAGER), fixed())),
    "graphs": lambda runtime: tried(World(Stepped(runtime, (4, 2)), fixed())),
    "three workers": lambda runtime: tried(World(Stepped(runtime, (4, 3, 1)), fixed())),
    "lengths": lambda runtime: tried(World(Stepped(runtime, (4, 2)), variable())),
    "lengths, eager": lambda runtime: tried(World(Stepped(runtime, (4, 2), EAGER), variable())),
    "lengths without bound": lambda runtime: tried(World(Stepped(runtime, (4, 2)), variable(UNBOUNDED))),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(seed=SEEDS)
@settings(max_examples=6)
def test_each_row_gets_its_own_outputs_in_every_order(kind: str, seed: int) -> None:
    world = MAKERS[kind](FakeRuntime(seed))
    assert world.executor.captured == (kind in ("graphs", "three workers", "lengths"))
    for _ in range(250):
        world.act()
    world.settle()
    assert world.answered


@pytest.mark.parametrize("options", [EAGER, DeviceOptions()], ids=["eager", "graphs"])
@given(seed=SEEDS)
@settings(max_examples=8)
def test_a_row_that_fails_at_any_stage_takes_nobody_with_it(options: DeviceOptions, seed: int) -> None:
    """Its unit ends with the step before, and what was launched behind that one does nothing."""
    world = tried(World(Stepped(FakeRuntime(seed), (4, 2), options), fixed(BAD)))
    for _ in range(300):
        world.act()
    world.settle()
    assert set(world.refused) <= set(BAD)
    assert not set(world.answered) & set(BAD)
    assert world.device.dead() is None


@given(seed=SEEDS, breaks_at=st.integers(1, 150))
@settings(max_examples=12)
def test_when_the_device_fails_each_unit_is_reported_once(seed: int, breaks_at: int) -> None:
    runtime = FakeRuntime(seed)
    world = tried(World(Stepped(runtime, (4, 2)), fixed()))
    runtime.breaks_at = runtime.done + breaks_at
    for _ in range(200):
        world.act()
    world.settle()


class Device:
    """A stepped device with the model of `fixed`, tried, and rows in its slots."""

    def __init__(self, *capacities: int, options: DeviceOptions = EAGER, trips: Trips | None = None) -> None:
        self.reports: list[Completion] = []
        self.stepped = Stepped(FakeRuntime(), capacities or (4,), options)
        self.executor = self.stepped.open((trips or fixed()).model, 8)
        assert isinstance(self.executor, StreamExecutor)
        for size in (1, 4):
            try_batch(self.stepped, self.executor, size, {})
        self.executor.pool.take(4)
        self.write(rows_of(10.0, 11.0, 12.0, 13.0))
        self.stepped.start(self.reports.append)

    def write(self, values: Array) -> None:
        self.executor.pool.write(range(4), 0, values)
        self.stepped.arrive(self.executor, range(4))

    @property
    def kept(self) -> Activations:
        return self.executor.kept

    def push(self, slots: list[int], stage: int, steps: int = 1) -> Job:
        job = Job(len(self.reports), self.executor, slots, len(slots), stage, steps)
        self.stepped.push(0, job)
        return job

    def run(self, slots: list[int], stage: int, steps: int = 1) -> Completion:
        self.push(slots, stage, steps)
        while self.stepped.turn():
            pass
        return self.reports[-1]


def test_what_a_unit_reads_is_kept_until_it_has_ended() -> None:
    device = Device()
    device.run([0], 0)
    read = weakref.ref(device.kept.places_of([0], 0)[0][0].tensors[0])
    device.push([0], 1)
    device.stepped.launch()
    while device.stepped.fake.step():  # it has run, and nobody has heard of it
        pass
    gc.collect()
    assert read() is not None
    while device.stepped.turn():
        pass
    gc.collect()
    assert read() is None


def test_a_stage_that_is_not_the_rows_next_fails_its_unit_alone() -> None:
    device = Device()
    assert "a row has not begun" in device.run([0], 1).message
    device.run([0], 0)
    assert "a row comes from stage 0" in device.run([0], 2).message
    assert [device.run([0], stage).outcome.error for stage in (1, 2, 3)] == [None] * 3
