"""Recurrent models: declared by a factory, refused in one line, and the axis of their steps."""

from __future__ import annotations

import re

import pytest
import specs

from app.contract import UNBOUNDED
from app.errors import ConfigError
from app.models import Recurrent
from app.models.recurrent.recurrent import StepAxis

from .folders import loaded, refused, table, toml_of, try_out, write_model

# Invariant: a recurrent model serves like any other, or is refused in one line with file, key, expected and got.


STEPS = table("inputs", "x", "FP32", '["time", 4]', "max_shape = [40, 4]")
TOML = toml_of(STEPS, table("outputs", "y", "FP32", "[8]"))

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


def test_a_cell_serves_like_any_model(tmp_path):
    model = loaded(write_model(tmp_path, TOML, CODE))
    assert try_out(model) == []
    assert model.present({}) == "shown"
    assert not model.call.cell.drop.training
    assert [spec.name for spec in model.info.client_inputs] == ["x"]
    assert not model.takes_parameters


@pytest.mark.parametrize(
    ("code", "toml", "message"),
    [
        (CODE, "kwargs = { shape = 0 }\n" + TOML, r"source 'model.py:build': Recurrent: state: expected shapes .*0,"),
        (CODE.replace("def step", "def steps"), TOML, "Recurrent: cell: expected an object with a method step.* Cell"),
        (CODE, TOML.replace("shape = [8]", 'shape = [8, "time"]'), r"outputs\[0\].shape: expected the axis of the st"),
        (CODE, "recurrent = 1\n" + TOML, "recurrent: expected a boolean, got 1"),
    ],
)
def test_a_wrong_declaration_is_one_line(tmp_path, code, toml, message):
    folder = write_model(tmp_path / "m", toml, code)
    text = refused(folder)
    assert text.startswith(f"{folder / 'model.toml'}: ")
    assert re.search(message, text)


def test_an_axis_of_its_own_is_for_recurrent_models(tmp_path):
    toml = TOML.replace("shape = [8]", 'shape = ["own", 8]')
    assert loaded(write_model(tmp_path, toml, CODE)).info.outputs[0].axes == ("own", "")
    text = refused(write_model(tmp_path / "plain", toml, "def build():\n    return lambda x: x"))
    assert "outputs[0].shape: expected -1 or an axis name of an input (time), got" in text


# Invariant: tensors that do not fit a cell are refused with the key of model.toml that says so.


class Reads:
    def step(self, x, state):
        return x, state


class Starts(Reads):
    def start(self, *inputs):
        return inputs[0], ()


class Finishes(Starts):
    def finish(self, state, ys, lengths):
        return ys


def spec(name, *shape, datatype="FP32", bound=9):
    return specs.spec(name, datatype, *shape, bound=bound)


def axis_of(inputs, outputs, cell=None, max_steps=None):
    return StepAxis(Recurrent(cell or Reads(), ((1,),), max_steps), specs.info_of(inputs, outputs))


X, Y, W = spec("x", "time", 2), spec("y", 2), spec("w", 3)
UNBOUND = spec("x", "time", 2, bound=UNBOUNDED)


@pytest.mark.parametrize(
    ("axis", "expected"),
    [
        (axis_of([X], [Y]), {"name": "time", "place": 0, "dim": 1, "most": 9}),
        # with start the first variable axis of any input; without it the first axis of the first input
        (axis_of([W, spec("x", 3, "time")], [Y], Starts()), {"name": "time", "place": 1, "dim": 2}),
        (axis_of([W, X], [Y]), {"name": ""}),
        (axis_of([X], [Y], max_steps=4), {"most": 4, "shortens": True}),
        (axis_of([UNBOUND], [Y]), {"most": None}),
        (axis_of([spec("x", 3)], [Y]), {"most": None}),
        (axis_of([X], [spec("a", "time"), spec("b", "written", 2), Y]), {"own": (False, True, False), "follower": "a"}),
        # finish may return other axes of the inputs
        (axis_of([X, spec("w", "width")], [spec("z", "width", "time")], Finishes()), {"name": "time"}),
    ],
)
def test_the_axis_of_the_steps(axis, expected):
    assert {key: getattr(axis, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("inputs", "outputs", "cell", "message"),
    [
        ([X, spec("t", 1, datatype="BYTES")], [Y], Starts(), r"inputs\[1\].datatype: expected a numeric type .*BYTES'"),
        ([spec("x")], [Y], Reads(), r"inputs\[0\].shape: expected \[length, ...\], .* got \[\]"),
        ([X], [Y, spec("z", 3, "time")], Reads(), r"outputs\[1\].shape: expected the axis of the steps first"),
        ([X], [spec("z", "time", "time")], Reads(), r"outputs\[0\].shape: expected .*, got \['time', 'time'\]"),
        ([UNBOUND], [spec("z", "own")], Reads(), r"outputs\[0\].shape: expected a bound of the axis 'own'"),
    ],
)
def test_what_does_not_fit(inputs, outputs, cell, message):
    with pytest.raises(ConfigError, match=message):
        axis_of(inputs, outputs, cell)
