"""Invariant: in whatever order streams and threads take their turns, a unit reads rows that have arrived, a result
leaves after its out-event and not before, a slot is reused by nobody too early, and each unit is reported once.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from runtimes import FakeRuntime

from app.contract import UNBOUNDED
from app.engine.device import DeviceOptions
from app.engine.profiling.warmup import warm_up
from app.scheduler.types import Fault

from ..rig import HEAVY, POISON, make_model, tensor
from .bench import EAGER
from .stepped import Stepped
from .worlds import Affine, Totals, fixed, made, variable, warmed

SEEDS = st.integers(0, 2**32 - 1)


class Buffers(Affine):
    """Writes each batch of a size into the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.memory: dict[int, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer = super().forward(x)
        return self.memory.setdefault(len(x), torch.empty_like(answer)).copy_(answer)


MAKERS = {
    "one worker, buffers": lambda runtime: fixed(Stepped(runtime, (4,), EAGER), model=Buffers()),
    "one worker, buffers, tried": lambda runtime: warmed(fixed(Stepped(runtime, (4,), EAGER), model=Buffers()), []),
    "eager": lambda runtime: fixed(Stepped(runtime, (4, 2), EAGER)),
    "graphs": lambda runtime: warmed(fixed(Stepped(runtime, (4, 2)))),
    "variable": lambda runtime: warmed(variable(Stepped(runtime, (4, 2))), [1, 2, 4]),
    "made": lambda runtime: warmed(made(Stepped(runtime, (4, 2)), 4), [1, 2, 4]),
    "unbounded": lambda runtime: warmed(made(Stepped(runtime, (4, 2)), UNBOUNDED), []),
    "three workers": lambda runtime: warmed(fixed(Stepped(runtime, (4, 3, 1)), 32)),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(seed=SEEDS, length=st.integers(1, 300))
@settings(max_examples=8)
def test_any_order_gives_each_row_its_own_result(kind: str, seed: int, length: int):
    world = MAKERS[kind](FakeRuntime(seed))
    for _ in range(length):
        world.act()
    world.settle()


@given(seed=SEEDS)
@settings(max_examples=12)
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
@settings(max_examples=20)
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


def test_the_largest_batch_is_run_at_full_length_where_memory_is_kept() -> None:
    shapes: list[tuple[int, ...]] = []

    class Sees(Totals):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            shapes.append(tuple(x.shape))
            return super().forward(x)

    device = Stepped(FakeRuntime(), (4,))
    x, y = tensor("x", "FP32", ("n", 40)), tensor("y", "FP32", 1)
    executor = device.open(make_model(Sees(), [x], [y], max_batch=4), 12)
    warm_up(device, executor)
    assert (4, 40) in shapes
