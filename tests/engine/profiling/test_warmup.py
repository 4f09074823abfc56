"""Invariant: a model serves only after every batch size has run and gave what is declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from app.contract import Model, SampleRow
from app.engine.cpu.device import CpuDevice
from app.engine.cpu.executor import CpuExecutor
from app.engine.executor import Ran
from app.engine.pool import Pool
from app.engine.profiling.warmup import warm_up
from app.errors import ConfigError
from app.scheduler.estimates.profile import Profile

from ..rig import Y, make_model, tensor


class Timed(CpuDevice):
    """Each size takes what the table says, if there is one."""

    def __init__(self, table: dict[int, int] | None = None) -> None:
        super().__init__((64,), threads=1, cores=1)
        self.table = table
        self.asked: list[int] = []

    def trial(self, executor, slots, size):
        ran = super().trial(executor, slots, size)
        self.asked.append(size)
        return ran if self.table is None else Ran(ran.outputs, 0, self.table[size], 0)


def warm(model: Model, device: Timed | None = None) -> Profile:
    return warm_up(device or Timed(), CpuExecutor(model, Pool(model.info.inputs, 64)))[0]


def ids(bound: int) -> dict[str, Any]:
    """Inputs and outputs of a model of sequences."""
    return {"inputs": [tensor("ids", "INT64", ("n", bound))], "outputs": [tensor("y", "INT64", ("n", bound))]}


@pytest.mark.parametrize(
    ("table", "budget_ns", "sizes", "times"),
    [
        # Once each after a few for first-use costs. That a single run of 3 was slower than one of 4 shows nothing.
        ({1: 50, 2: 95, 3: 140, 4: 100}, 1 << 60, [1, 2, 4, 1, 2, 3, 4], (50, 95, 100, 100)),
        # Beyond the budget powers of two are run, and the rest lies between.
        (
            {1: 100, 2: 200, 4: 300, 8: 1100, 11: 1400}, -1, [1, 2, 11, 1, 2, 4, 8, 11],
            (100, 200, 250, 300, 500, 700, 900, 1100, 1200, 1300, 1400),
        ),
    ],
)  # fmt: skip
def test_every_size_is_run_and_timed(table, budget_ns, sizes, times, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("app.engine.profiling.warmup._BUDGET_NS", budget_ns)
    device = Timed(table)
    assert warm(make_model(max_batch=len(times)), device).batch_ns == times
    assert device.asked == sizes
    assert min(warm(make_model(max_batch=5)).batch_ns) > 0


@pytest.mark.parametrize(
    ("bound", "max_batch", "shapes"),
    [(40, 2, [(1, 16), (2, 16), (1, 40), (1, 16), (2, 16)]), (5, 1, [(1, 5), (1, 5), (1, 5)])],
)
def test_inputs_are_ones_of_short_length_and_once_of_full_length(bound: int, max_batch: int, shapes: list[Any]):
    """In inference mode."""
    seen: list[tuple[tuple[int, ...], bool, bool]] = []

    def call(x: torch.Tensor) -> torch.Tensor:
        seen.append((tuple(x.shape), bool((x == 1).all()), torch.is_inference_mode_enabled()))
        return x

    warm(make_model(call, **ids(bound), max_batch=max_batch))
    assert seen == [(shape, True, True) for shape in shapes]
    assert not torch.is_inference_mode_enabled()


def test_every_datatype_can_be_warmed_up():
    names = ["BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32"]
    inputs = [tensor(name.lower(), name, 2) for name in [*names, "FP64", "BYTES"]]
    seen: list[list[object]] = []

    def call(*values):
        seen.append([value.reshape(-1).tolist()[0] for value in values])
        return torch.ones(len(values[0]), 2)

    warm(make_model(call, inputs, [Y], max_batch=2))
    assert seen[-1] == [True, *[1] * 12, b""]


def too_many(x: torch.Tensor) -> torch.Tensor:
    if len(x) == 3:
        raise IndexError("three is too many")
    return x


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (too_many, "a batch of 3 rows: IndexError: three is too many"),
        (lambda x: x if len(x) < 3 else x.half(), "expected FP32"),
    ],
)
def test_a_model_that_does_not_do_what_it_declares_is_refused_by_name(call, message: str):
    with pytest.raises(ConfigError, match=message):
        warm(make_model(call, max_batch=4))


def test_samples_keep_their_lengths_and_parameters():
    seen: list[tuple[list[list[int]], list[object]]] = []

    def call(x: torch.Tensor, *, parameters: list[object]) -> torch.Tensor:
        seen.append((x.tolist(), parameters))
        return x

    rows = [SampleRow((np.arange(1, n + 1),), {"n": n}, {"gain": n}) for n in (1, 3)]
    warm(make_model(call, **ids(40), samples=rows, takes_parameters=True, max_batch=2))
    assert seen[-1] == ([[1, 0, 0], [1, 2, 3]], [{"gain": 1}, {"gain": 3}])
