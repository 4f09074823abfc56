"""Rows must be independent at every boundary, and what is wrong says at which stage."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from app.contract import Batching, Model, ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models import Staged

from .folders import try_out

X = TensorSpec("x", "FP32", (4,), ("",), (4,))
SEQUENCE = TensorSpec("x", "FP32", (-1, 2), ("t", ""), (32, 2))
MASK = TensorSpec("mask", "FP32", (-1,), ("t",), (32,), mask_of="x")
Y = TensorSpec("y", "FP32", (4,), ("",), (4,))
SUM = TensorSpec("y", "FP32", (), (), ())


def model(*stages, inputs=(X,), outputs=(Y,), again=(), row_check="refuse", max_batch=8) -> Model:
    staged = Staged(stages, again)
    info = ModelInfo("m", "1", "test", tuple(inputs), tuple(outputs), Batching(max_batch=max_batch))
    return Model(info, staged, stages=staged.stages, again=staged.again, row_check=row_check)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def centred(x: torch.Tensor) -> torch.Tensor:
    """The batch's mean goes into each row."""
    return x - x.mean(0)


def hidden(x: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(x) if len(x) else x


def test_independent_stages_pass():
    assert try_out(model(nn.Linear(4, 4), nn.ReLU(), double)) == []


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((double, centred, double), "depends on the other rows of its batch: output 'stage 1': "),
        ((double, lambda x: (x, centred(x)), lambda x, y: x), "output 'stage 1, value 1': "),
    ],
)
def test_a_stage_that_looks_at_other_rows_is_named(stages, message):
    with pytest.raises(ConfigError, match=message):
        try_out(model(*stages))


def test_nan_of_a_neighbour_must_not_spread():
    """The difference to a neighbour, times 0, is nothing but for a neighbour of NaN."""
    with pytest.raises(ConfigError, match=r"output 'stage 1, y': .* with NaN and infinity in"):
        try_out(model(double, lambda x: x + 0 * x.sum(0)))


# lengths


def total(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (hidden * mask[..., None]).sum((1, 2))


def test_a_mask_of_the_other_sign_goes_wrong_where_rows_join():
    """1 marks padding: what is padded with 0 where a row joins a longer one counts. Whole batches are right."""

    def first(x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * 2 + 1, 1 - mask

    def second(hidden: torch.Tensor, padding: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return hidden + 1, padding

    def last(hidden: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        return (hidden * (1 - padding)[..., None]).sum((1, 2))

    given = {"inputs": (SEQUENCE, MASK), "outputs": (SUM,)}
    message = "how far it is padded: output 'stage 2, y': .* joins at stage 1, where what it brings is padded with 0"
    with pytest.raises(ConfigError, match=message):
        try_out(model(first, second, last, **given))
    again = [(), (), (1,)]
    assert try_out(model(lambda x, m: x * 2 + 1, lambda h: h + 1, total, again=again, **given)) == []
