"""Invariant: a model serves only after every batch size has run and gave what is declared; its queue fits in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from app.contract import Model, SampleRow
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import Ran
from app.engine.pool import Pool
from app.engine.profiling.warmup import warm_up
from app.errors import ConfigError
from app.models.checks.trial import Unfit
from app.scheduler.types import Profile

from ..rig import Y, make_model, tensor


def executor_of(model: Model, slots: int = 64) -> CpuExecutor:
    return CpuExecutor(model, Pool(model.info.inputs, slots))


DEVICE = CpuDevice((64,), threads=1, cores=1)


def warm(model: Model, max_batch: int) -> Profile:
    return warm_up(DEVICE, executor_of(model), max_batch).profile


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


def test_every_size_is_run_once_after_a_few_for_first_use_costs():
    sizes: list[int] = []
    warm(make_model(lambda x: sizes.append(len(x)) or x, max_batch=6), 6)
    assert sizes == [1, 2, 6, *range(1, 7)]


def test_profile_has_the_measured_times():
    table = {1: 50, 2: 95, 3: 140, 4: 100}  # not monotone, as real ones are
    device = Timed(table)
    assert warm_up(device, executor_of(make_model(max_batch=4)), 4).profile.batch_ns == (50, 95, 140, 100)
    assert device.asked == [1, 2, 4, 1, 2, 3, 4]


def test_real_times_are_positive():
    profile = warm(make_model(), 5)
    assert len(profile.batch_ns) == 5
    assert min(profile.batch_ns) > 0


def test_beyond_the_budget_powers_of_two_are_run_and_the_rest_lies_between(monkeypatch):
    monkeypatch.setattr("app.engine.profiling.warmup._BUDGET_NS", -1)
    table = {1: 100, 2: 200, 4: 300, 8: 1100, 11: 1400}
    device = Timed(table)
    profile = warm_up(device, executor_of(make_model(max_batch=11)), 11).profile
    assert device.asked == [1, 2, 11, 1, 2, 4, 8, 11]
    assert profile.batch_ns == (100, 200, 250, 300, 500, 700, 900, 1100, 1200, 1300, 1400)


def test_inputs_are_ones_of_short_length_and_once_of_full_length():
    seen: list[tuple[tuple[int, ...], bool]] = []
    ids = tensor("ids", "INT64", ("tokens", 40))
    out = tensor("y", "INT64", ("tokens", 40))

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(x.shape), bool((x == 1).all())))
        return x

    warm(make_model(call, [ids], [out], max_batch=2), 2)
    assert seen == [((size, length), True) for size, length in ((1, 16), (2, 16), (1, 40), (1, 16), (2, 16))]


def test_bounds_below_the_short_length():
    shapes: list[tuple[int, ...]] = []
    ids = tensor("ids", "INT64", ("tokens", 5))
    warm(make_model(lambda x: shapes.append(tuple(x.shape)) or x, [ids], [tensor("y", "INT64", ("tokens", 5))]), 1)
    assert shapes == [(1, 5)] * 2


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

    with pytest.raises(ConfigError, match="model 'm': a batch of 3 rows: IndexError: three is too many"):
        warm(make_model(call, max_batch=4), 4)


def test_a_model_that_runs_out_of_memory():
    def call(x: torch.Tensor) -> torch.Tensor:
        raise MemoryError

    with pytest.raises(ConfigError, match="model 'm' version 1: a batch of 1 row: MemoryError"):
        warm(make_model(call), 4)


def test_a_model_that_raises_on_made_up_rows():
    with pytest.raises(Unfit, match="ZeroDivisionError"):
        warm(make_model(lambda x: 1 / 0), 4)


def test_samples_are_run_instead_of_made_up_rows_each_in_its_turn():
    seen: list[list[float]] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append(x[:, 0].tolist())
        return x

    rows = [SampleRow((np.full(2, value, np.float32),)) for value in (7, 8)]
    warmed = warm_up(DEVICE, executor_of(make_model(call, samples=rows, max_batch=3)), 3)
    assert seen == [[7], [7, 7], [7, 7, 7], [7], [7, 8], [7, 8, 7]]
    assert list(warmed.rows) == rows
    assert len(warmed.profile.batch_ns) == 3


def test_samples_keep_their_lengths_and_parameters():
    seen: list[tuple[list[list[int]], list[object]]] = []
    ids = tensor("ids", "INT64", ("tokens", 40))

    def call(x: torch.Tensor, *, parameters: list[object]) -> torch.Tensor:
        seen.append((x.tolist(), parameters))
        return x

    rows = [SampleRow((np.arange(1, n + 1),), {"tokens": n}, {"gain": n}) for n in (1, 3)]
    out = tensor("y", "INT64", ("tokens", 40))
    warm(make_model(call, [ids], [out], samples=rows, takes_parameters=True, max_batch=2), 2)
    assert seen[-1] == ([[1, 0, 0], [1, 2, 3]], [{"gain": 1}, {"gain": 3}])


def test_a_sample_that_cannot_be_made_longer_is_only_warned_about():
    ids, out = tensor("ids", "INT64", ("tokens", 40)), tensor("y", "INT64", ("tokens", 40))

    def call(x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] > 3:
            raise ValueError("two ends of text")
        return x

    warmed = warm_up(
        DEVICE, executor_of(make_model(call, [ids], [out], samples=[SampleRow((np.ones(3),), {"tokens": 3})])), 2
    )
    assert warmed.warnings == (
        "not tried: a sample repeated to a row at full length (tokens 40): ValueError: two ends of text",
    )


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
