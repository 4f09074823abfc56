"""Invariant: in whatever order streams and threads take their turns, a unit reads rows that have arrived, a result
leaves after its out-event and not before, a slot is reused by nobody too early, and each unit is reported once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime, FakeStream
from torch import nn

from app.contract import UNBOUNDED
from app.engine.devices.base import DeviceOptions
from app.engine.devices.streams.device import StreamDevice
from app.engine.profiling.warmup import try_batch, warm_up
from app.scheduler.types import Fault, WorkerSpec

from ...rig import HEAVY, POISON, make_model, tensor
from .stepped import Stepped, World

SEEDS = st.integers(0, 2**32 - 1)


class Affine(nn.Module):
    """y = 2 x + 1, elementwise; rows may ask it to fail."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = set(x[:, 0].tolist())
        if HEAVY in first:
            raise torch.OutOfMemoryError("too heavy")
        if POISON in first:
            raise ValueError("poisoned")
        return x * 2 + 1


class Totals(nn.Module):
    """The sum of each row: what is padded must not count."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sum(1, keepdim=True)


def fixed(device: Stepped, slots: int = 12, **batching: int) -> World:
    """A world of rows of two numbers."""
    executor = device.watched_executor(make_model(Affine(), max_batch=4, **batching), slots)
    return World(
        device,
        executor,
        lambda number: np.array([number, number + 0.5], np.float32),
        lambda number: np.array([number * 2 + 1, number * 2 + 2], np.float32),
    )


def variable(device: Stepped) -> World:
    """A world of rows of one to four numbers."""
    x, y = tensor("x", "FP32", ("n", 4)), tensor("y", "FP32", 1)
    executor = device.watched_executor(make_model(Totals(), [x], [y], max_batch=4), 12)
    return World(
        device,
        executor,
        lambda number: np.full(int(number) % 4 + 1, number, np.float32),
        lambda number: np.array([number * (int(number) % 4 + 1)], np.float32),
    )


class Masked(nn.Module):
    """The sum of each row's values, of which a mask tells, and its length a hundredfold; padding is not 0."""

    def forward(self, mask: torch.Tensor, x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(1, keepdim=True) + 100 * n[:, None]


def made(device: Stepped, bound: int) -> World:
    """A world of rows of one to four numbers, whose mask and lengths are made on the device."""
    x, y = tensor("x", "FP32", ("n", bound), pad_value=7), tensor("y", "FP32", 1)
    mask, n = tensor("mask", "FP32", ("n", bound), mask_of="x"), tensor("n", "INT32", lengths_of="n")
    executor = device.watched_executor(make_model(Masked(), [mask, x, n], [y], max_batch=4), 12)
    return World(
        device,
        executor,
        lambda number: np.full(int(number) % 4 + 1, number, np.float32),
        lambda number: np.array([(number + 100) * (int(number) % 4 + 1)], np.float32),
    )


def warmed(world: World) -> World:
    """With what was captured for each size."""
    for size in range(1, 5):
        try_batch(world.device, world.executor, size, dict.fromkeys(world.executor.axes, 4))
    assert [memory.graphs.sizes if memory.graphs else [] for memory in world.executor.memories] == [
        [] if world.executor.axes else list(range(1, worker.spec.capacity + 1)) for worker in world.device.workers
    ]
    return world


MAKERS = {
    "eager": lambda runtime: fixed(Stepped(runtime, (4, 2), DeviceOptions(graphs=False))),
    "graphs": lambda runtime: warmed(fixed(Stepped(runtime, (4, 2)))),
    "variable": lambda runtime: warmed(variable(Stepped(runtime, (4, 2)))),
    "made": lambda runtime: warmed(made(Stepped(runtime, (4, 2)), 4)),
    "unbounded": lambda runtime: warmed(made(Stepped(runtime, (4, 2)), UNBOUNDED)),
    "deep": lambda runtime: warmed(fixed(Stepped(runtime, (4, 3, 1), DeviceOptions(push_depth=4)), 32)),
}


@pytest.mark.parametrize("lends", [False, True], ids=["copied", "lent"])
@pytest.mark.parametrize("kind", MAKERS)
@given(seed=SEEDS, length=st.integers(1, 300))
@settings(max_examples=15, deadline=None)
def test_any_order_gives_each_row_its_own_result(kind: str, lends: bool, seed: int, length: int):
    with pytest.MonkeyPatch.context() as patch:
        if lends:
            patch.setattr("app.engine.devices.streams.memory.results._SMALL", -1)
        world = MAKERS[kind](FakeRuntime(seed))
        for _ in range(length):
            world.act()
        world.settle()
    assert sorted(world.launched) == list(range(len(world.units)))


@pytest.mark.parametrize("bound", [4, UNBOUNDED])
def test_the_first_use_of_a_model_has_all_its_inputs(bound: int):
    """What it raises is left to warm-up, so nobody else would see it."""
    world = made(Stepped(FakeRuntime(), (4, 2)), bound)
    world.executor.first_use()


@given(seed=SEEDS)
@settings(max_examples=25, deadline=None)
def test_a_row_that_fails_takes_down_its_unit_alone(seed: int):
    world = fixed(Stepped(FakeRuntime(seed), (4, 2), DeviceOptions(graphs=False)))
    usual = world.rows
    world.bad = {102.0: Fault.MODEL, 105.0: Fault.OOM, 109.0: Fault.MODEL}
    values = {Fault.MODEL: POISON, Fault.OOM: HEAVY}
    world.rows = lambda number: usual(values[world.bad[number]] if number in world.bad else number)
    for _ in range(200):
        world.act()
    world.settle()
    assert world.device.dead() is None


@given(seed=SEEDS, breaks_at=st.integers(1, 150))
@settings(max_examples=40, deadline=None)
def test_a_device_that_fails_reports_each_unit_once_and_no_wrong_result(seed: int, breaks_at: int):
    runtime = FakeRuntime(seed)
    world = warmed(fixed(Stepped(runtime, (4, 2))))
    runtime.breaks_at = runtime.done + breaks_at
    for _ in range(200):
        world.act()
    world.settle()
    assert {unit.fault for unit in world.units} <= {None, Fault.DEVICE}
    if world.lost:
        assert "AcceleratorError" in (world.device.dead() or "")


class Inline(FakeRuntime):
    """Does at once, on the thread that enqueues it, what it is given: as CUDA does all that is Python."""

    def enqueue(self, stream: FakeStream, work: Callable[[], None]) -> None:
        work()


def test_first_use_does_not_hold_up_the_launcher() -> None:
    """Compiling takes up to minutes, and other models' units wait in the launcher's queue."""
    calls: list[tuple[str, int]] = []

    class Sees(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            calls.append((threading.current_thread().name, len(x)))
            return x * 2 + 1

    device = StreamDevice(Inline(), (WorkerSpec(4),))
    device.start(lambda completion: None)
    executor = device.open(make_model(Sees(), max_batch=4), 8)
    opener = threading.current_thread().name
    assert calls == [(opener, 1), (opener, 2)]
    try_batch(device, executor, 4, {})
    assert {name for name, _ in calls[2:]} == {"launcher"}
    assert device.close(10)


def test_the_largest_batch_is_run_at_full_length_where_memory_is_kept() -> None:
    shapes: list[tuple[int, ...]] = []

    class Sees(Totals):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(x.shape))
            return super().forward(x)

    device = Stepped(FakeRuntime(), (4,))
    x, y = tensor("x", "FP32", ("n", 40)), tensor("y", "FP32", 1)
    executor = device.open(make_model(Sees(), [x], [y], max_batch=4), 12)
    warm_up(device, executor, 4)
    assert (4, 40) in shapes
