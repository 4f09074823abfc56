"""Invariant: a model serves only after every batch size has run and gave what is declared; its queue fits in memory."""

from __future__ import annotations

import pytest
import torch

from app.contract import Model
from app.engine.devices.base import Ran
from app.engine.devices.cpu.device import CpuDevice
from app.engine.devices.cpu.executor import CpuExecutor
from app.engine.devices.pool import Pool
from app.engine.profiling.warmup import warm_up
from app.errors import ConfigError
from app.scheduler.types import Profile

from ..rig import Y, make_model, tensor


def executor_of(model: Model, slots: int = 64) -> CpuExecutor:
    return CpuExecutor(model, Pool(model.info.inputs, slots))


DEVICE = CpuDevice((64,), threads=1, cores=1)


def warm(model: Model, max_batch: int) -> Profile:
    return warm_up(DEVICE, executor_of(model), max_batch)


class Timed(CpuDevice):
    """Each size takes what the table says; those not in it have not been asked for."""

    def __init__(self, table: dict[int, int]) -> None:
        super().__init__((64,), threads=1, cores=1)
        self.table = table
        self.asked: list[int] = []

    def trial(self, executor, slots, size):
        ran = super().trial(executor, slots, size)
        self.asked.append(size)
        return Ran(ran.outputs, 0, self.table[size], 0)


def test_every_size_is_run_once_after_one_run_for_first_use_costs():
    sizes: list[int] = []
    warm(make_model(lambda x: sizes.append(len(x)) or x), 6)
    assert sizes == [1, 1, 2, 3, 4, 5, 6]


def test_profile_has_the_measured_times():
    table = {1: 50, 2: 95, 3: 140, 4: 100}  # not monotone, as real ones are
    device = Timed(table)
    assert warm_up(device, executor_of(make_model()), 4).batch_ns == (50, 95, 140, 100)
    assert device.asked == [1, 1, 2, 3, 4]


def test_real_times_are_positive():
    profile = warm(make_model(), 5)
    assert len(profile.batch_ns) == 5
    assert min(profile.batch_ns) > 0


def test_beyond_the_budget_powers_of_two_are_run_and_the_rest_lies_between(monkeypatch):
    monkeypatch.setattr("app.engine.profiling.warmup._BUDGET_NS", -1)
    table = {1: 100, 2: 200, 4: 300, 8: 1100, 11: 1400}
    device = Timed(table)
    profile = warm_up(device, executor_of(make_model()), 11)
    assert device.asked == [1, 1, 2, 4, 8, 11]
    assert profile.batch_ns == (100, 200, 250, 300, 500, 700, 900, 1100, 1200, 1300, 1400)


def test_inputs_are_ones_and_lengths_first_full_then_short():
    seen: list[tuple[tuple[int, ...], bool]] = []
    ids = tensor("ids", "INT64", ("tokens", 40))
    out = tensor("y", "INT64", ("tokens", 40))

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(x.shape), bool((x == 1).all())))
        return x

    warm(make_model(call, [ids], [out]), 2)
    assert seen == [((1, 40), True), ((1, 16), True), ((2, 16), True)]


def test_bounds_below_the_short_length():
    shapes: list[tuple[int, ...]] = []
    ids = tensor("ids", "INT64", ("tokens", 5))
    warm(make_model(lambda x: shapes.append(tuple(x.shape)) or x, [ids], [tensor("y", "INT64", ("tokens", 5))]), 1)
    assert shapes == [(1, 5), (1, 5)]


def test_every_datatype_can_be_warmed_up():
    names = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32"]
    inputs = [tensor(name.lower(), name, 2) for name in [*names, "FP64", "BYTES"]]
    seen: list[list[object]] = []

    def call(*values):
        seen.append([value.reshape(-1).tolist()[0] for value in values])
        return torch.ones(len(values[0]), 2)

    warm(make_model(call, inputs, [Y]), 2)
    assert seen[-1] == [True, *[1] * 12, b""]


def test_warm_up_runs_in_inference_mode():
    modes: list[bool] = []
    warm(make_model(lambda x: modes.append(torch.is_inference_mode_enabled()) or x), 1)
    assert set(modes) == {True}
    assert not torch.is_inference_mode_enabled()


def test_a_model_that_writes_into_its_input_is_noticed():
    executor = executor_of(make_model(lambda x: x.add_(1)))
    warm_up(DEVICE, executor, 2)
    assert executor.copies


def test_a_model_that_raises():
    def call(x: torch.Tensor) -> torch.Tensor:
        if len(x) == 3:
            raise IndexError("three is too many")
        return x

    with pytest.raises(ConfigError, match="model 'm': warm-up failed: IndexError: three is too many"):
        warm(make_model(call), 4)


def test_a_model_that_runs_out_of_memory():
    def call(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    with pytest.raises(ConfigError, match="model 'm': warm-up failed: MemoryError"):
        warm(make_model(call), 4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.double(), "expected FP32"),
        (lambda x: x[:, :1], r"got (shape )?\[1, 1\]"),
        (lambda x: x[:0], "expected a batch of 1 rows"),
        (lambda x: (x, x), "expected 1 outputs"),
        (lambda x: "text", "got str"),
        (lambda x: x if len(x) < 3 else x.half(), "expected FP32"),
    ],
    ids=["dtype", "shape", "rows", "number", "type", "later"],
)
def test_outputs_that_are_not_what_is_declared(call, message: str):
    with pytest.raises(ConfigError, match=message) as wrong:
        warm(make_model(call), 4)
    assert "'m'" in str(wrong.value) or "'y'" in str(wrong.value)


@pytest.mark.parametrize("call", [lambda x: x.double(), lambda x: x[:0], lambda x: x.sum()])
def test_wrong_outputs_name_the_model(call):
    with pytest.raises(ConfigError, match="model 'm'"):
        warm(make_model(call), 1)


def test_an_output_axis_of_another_length_than_the_inputs():
    ids, out = tensor("ids", "INT64", ("tokens", 8)), tensor("y", "INT64", ("tokens", 8))
    with pytest.raises(ConfigError, match="output 'y'"):
        warm(make_model(lambda x: x[:, 1:], [ids], [out]), 1)
