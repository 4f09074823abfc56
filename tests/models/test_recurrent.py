"""Invariant: a recurrent model serves like any other, or is refused in one line with file, key, expected and got."""

from __future__ import annotations

import re

import pytest

from app.errors import ConfigError
from app.models.loading import load

from .folders import refused, source_of, try_out, write_model

TOML = """
source = "model.py:build"
[[inputs]]
name = "x"
datatype = "FP32"
shape = ["time", 4]
max_shape = [40, 4]
[[outputs]]
name = "y"
datatype = "FP32"
shape = [8]
"""

CODE = """
import torch
from torch import nn
from app.models import Recurrent
class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.GRUCell(4, 8)
        self.drop = nn.Dropout(0.5)
    def step(self, x, state):
        hidden = self.drop(self.cell(x, state[0]))
        return hidden, (hidden,)
    def present(self, outputs):
        return "shown"
def build(shape=8):
    return Recurrent(Cell(), state=((shape,),))
"""


def load_code(tmp_path, code=CODE, toml=TOML, **options):
    return load(source_of(write_model(tmp_path / "m", toml, code)), **options)


def test_a_cell_serves_like_any_model(tmp_path):
    model = load_code(tmp_path)
    assert try_out(model) == []
    assert model.present({}) == "shown"
    assert not model.call.cell.drop.training
    assert [spec.name for spec in model.info.client_inputs] == ["x"]
    assert not model.takes_parameters


@pytest.mark.parametrize(
    ("code", "toml", "message"),
    [
        (CODE, "kwargs = { shape = 0 }" + TOML, r"source 'model.py:build': Recurrent: state: expected shapes .*0,"),
        (CODE.replace("def step", "def steps"), TOML, "Recurrent: cell: expected an object with a method step.* Cell"),
        (CODE, TOML.replace("shape = [8]", 'shape = [8, "time"]'), r"outputs\[0\].shape: expected the axis of the st"),
        (CODE, "recurrent = 1" + TOML, "recurrent: expected a boolean, got 1"),
    ],
)
def test_a_wrong_declaration_is_one_line(tmp_path, code, toml, message):
    folder = write_model(tmp_path / "m", toml, code)
    text = refused(folder)
    assert text.startswith(f"{folder / 'model.toml'}: ")
    assert re.search(message, text)


def test_a_cell_that_gives_another_state_than_it_declares_is_refused(tmp_path):
    model = load_code(tmp_path, CODE.replace("(hidden,)", "(hidden[:, 1:],)"))
    with pytest.raises(ConfigError, match=r"^a batch of 1 row: step: state\[0\]: expected "):
        try_out(model)


def test_an_axis_of_its_own_is_for_recurrent_models(tmp_path):
    toml = TOML.replace("shape = [8]", 'shape = ["own", 8]')
    assert load_code(tmp_path, toml=toml).info.outputs[0].axes == ("own", "")
    text = refused(write_model(tmp_path / "plain", toml, "def build():\n    return lambda x: x"))
    assert "outputs[0].shape: expected -1 or an axis name of an input (time), got" in text
