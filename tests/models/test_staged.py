"""A factory's Staged: what it takes, what it passes on, and what the loader makes of it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from app.contract import ModelSource
from app.errors import ConfigError
from app.models import Staged
from app.models.loading import load

from .folders import source_of as source
from .folders import write_model

TOML = """
source = "model.py:build"
[[inputs]]
name = "x"
datatype = "FP32"
shape = [2]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [2]
"""


def double(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x * 2, x


def add(doubled: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return doubled + x


def test_stages_follow_one_another_and_tuples_are_unpacked():
    staged = Staged([double, add])
    assert staged(torch.ones(3, 2)).tolist() == [[3, 3]] * 3


def test_inputs_come_again_behind_what_the_last_stage_returned():
    staged = Staged([lambda x, mask: x * 2, lambda y, mask: y * mask], again=[(), (1,)])
    assert staged(torch.ones(2, 1), torch.tensor([[1.0], [0.0]])).tolist() == [[2], [0]]


def test_weights_are_those_of_modules_and_of_modules_behind_methods():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(2, 2)
            self.drop = nn.Dropout()

        def head(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.linear(x))

    net = Net()
    staged = Staged([nn.Linear(2, 2), net.head]).eval()
    assert len(list(staged.parameters())) == 4
    assert not net.drop.training


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Staged([]), "expected a list of callables"),
        (lambda: Staged(double), "expected a list of callables"),
        (lambda: Staged([double, 3]), "expected a callable as stage 1, got int"),
        (lambda: Staged([double, add], again=[(0,), ()]), "none for the first"),
        (lambda: Staged([double, add], again=[()]), "an entry of `again` for each stage"),
    ],
)
def test_what_is_no_model_in_stages_is_said(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (lambda x: {"y": x}, "stage 0: expected a tensor or a tuple of tensors, got dict"),
        (lambda x: (x, 3), "stage 0: value 1: expected a tensor, got int"),
        (lambda x: x.T, r"stage 0: value 0: expected 3 rows first, got shape \[2, 3\]"),
        (lambda x: x.sum(), r"stage 0: value 0: expected 3 rows first, got shape \[\]"),
    ],
)
def test_what_a_stage_must_not_pass_on_is_said(first, message):
    with pytest.raises(ConfigError, match=message):
        Staged([first, lambda x: x])(torch.ones(3, 2))


def source_of(tmp_path, code: str, toml: str = TOML) -> ModelSource:
    return source(write_model(tmp_path / "m", toml, code))


def test_a_factory_may_return_stages(tmp_path):
    code = """
from app.models import Staged
import torch
def build():
    return Staged([torch.nn.Linear(2, 2), torch.nn.Dropout(), lambda x: x])
"""
    model = load(source_of(tmp_path, code))
    assert len(model.stages) == 3
    assert model.again == ((), (), ())
    x = torch.ones(4, 2)
    staged = x
    for stage in model.stages:
        staged = stage(staged)
    assert torch.equal(model.call(x), staged)


def test_one_stage_is_a_model_in_one_piece(tmp_path):
    code = "from app.models import Staged\ndef build():\n    return Staged([lambda x: x])\n"
    assert load(source_of(tmp_path, code)).stages == ()


def test_parameters_are_the_first_stages(tmp_path):
    code = """
from app.models import Staged
def first(x, *, parameters): return x
def build(): return Staged([first, lambda x: x])
"""
    assert load(source_of(tmp_path, code)).takes_parameters


def test_the_first_stage_takes_the_inputs(tmp_path):
    code = "from app.models import Staged\ndef build():\n    return Staged([lambda a, b: a, lambda x: x])\n"
    with pytest.raises(ConfigError, match=r"model\.toml: inputs: expected as many"):
        load(source_of(tmp_path, code))


def test_stages_of_text_are_refused(tmp_path):
    code = "from app.models import Staged\ndef build():\n    return Staged([lambda x: x, lambda x: x])\n"
    toml = TOML.replace('"FP32"', '"BYTES"', 1)
    with pytest.raises(ConfigError, match=r"model\.toml: inputs\[0\]\.datatype: expected numbers .* got BYTES"):
        load(source_of(tmp_path, code, toml))
