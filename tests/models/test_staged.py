"""A factory's Staged: what it takes, what it passes on, and what the loader makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.errors import ConfigError
from app.models import Staged
from app.models.loading import load

from .folders import refused, source_of, write_model

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
def test_what_is_no_model_in_stages(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (lambda x: {"y": x}, "stage 0: expected a tensor or a tuple of tensors, got dict"),
        (lambda x: (x, 3), "stage 0: value 1: expected a tensor, got int"),
        (lambda x: x.T, r"stage 0: value 0: expected 3 rows first, got shape \[2, 3\]"),
    ],
)
def test_what_a_stage_must_not_pass_on(first, message):
    with pytest.raises(ConfigError, match=message):
        Staged([first, lambda x: x])(torch.ones(3, 2))


def folder_with(tmp_path, stages: str, toml: str = TOML) -> Path:
    code = f"from app.models import Staged\nfrom torch import nn\ndef build():\n    return Staged([{stages}])\n"
    return write_model(tmp_path / "m", toml, code)


def test_a_factory_may_return_stages(tmp_path):
    model = load(source_of(folder_with(tmp_path, "nn.Linear(2, 2), nn.Dropout(), lambda x: x")))
    assert len(model.stages) == 3
    assert model.again == ((), (), ())
    x = staged = torch.ones(4, 2)
    for stage in model.stages:
        staged = stage(staged)
    assert torch.equal(model.call(x), staged)


@pytest.mark.parametrize(
    ("stages", "toml", "message"),
    [
        ("lambda a, b: a, lambda x: x", TOML, "inputs: expected as many"),
    ],
)
def test_stages_that_do_not_fit_are_refused(tmp_path, stages, toml, message):
    assert f"model.toml: {message}" in refused(folder_with(tmp_path, stages, toml))
