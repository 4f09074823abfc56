"""Invariant: tensors that do not fit a cell are refused with the key of model.toml that says so."""

from __future__ import annotations

from typing import Any

import pytest

from app.contract import UNBOUNDED, ModelInfo, TensorSpec
from app.errors import ConfigError
from app.models import Recurrent
from app.models.recurrent.cell_specs import step_axis


class Reads:
    def step(self, x: Any, state: Any) -> Any:
        return x, state


class Starts(Reads):
    def start(self, *inputs: Any) -> Any:
        return inputs[0], ()


class Finishes(Starts):
    def finish(self, state: Any, ys: Any, lengths: Any) -> Any:
        return ys


def spec(name: str, *shape: int | str, datatype: str = "FP32", bound: int = 9) -> TensorSpec:
    axes = tuple(axis if isinstance(axis, str) else "" for axis in shape)
    lengths = tuple(-1 if isinstance(axis, str) else axis for axis in shape)
    return TensorSpec(name, datatype, lengths, axes, tuple(bound if length == -1 else length for length in lengths))


def axis_of(inputs: Any, outputs: Any, cell: Any = None, max_steps: int | None = None) -> Any:
    info = ModelInfo("m", "1", "pytorch", tuple(inputs), tuple(outputs))
    return step_axis(Recurrent(cell or Reads(), ((1,),), max_steps), info)


X, Y = spec("x", "time", 2), spec("y", 2)


def test_the_axis_of_the_first_input_and_with_start_of_any() -> None:
    weights = spec("w", 3)
    axis = axis_of([X], [Y])
    assert (axis.name, axis.place, axis.dim, axis.most) == ("time", 0, 1, 9)
    axis = axis_of([weights, spec("x", 3, "time")], [Y], Starts())
    assert (axis.name, axis.place, axis.dim) == ("time", 1, 2)
    assert axis_of([weights, X], [Y]).name == "", "without start only the first input is read"
    assert axis_of([spec("x", 3, "wide")], [Y]).name == "", "which goes along its first axis"


def test_the_most_steps() -> None:
    assert axis_of([X], [Y], max_steps=4).most == 4
    assert axis_of([X], [Y], max_steps=4).shortens
    assert not axis_of([X], [Y], max_steps=40).shortens
    assert axis_of([spec("x", "time", 2, bound=UNBOUNDED)], [Y]).most is None
    assert axis_of([spec("x", 3)], [Y]).most is None


def test_outputs_of_their_own_and_those_that_follow() -> None:
    axis = axis_of([X], [spec("a", "time"), spec("b", "written", 2), Y])
    assert (axis.own, axis.followers) == ((False, True, False), ("a",))


@pytest.mark.parametrize(
    ("inputs", "outputs", "cell", "message"),
    [
        ([X, spec("t", 1, datatype="BYTES")], [Y], Starts(), r"inputs\[1\].datatype: expected a numeric type .*BYTES'"),
        ([spec("x")], [Y], Reads(), r"inputs\[0\].shape: expected \[length, ...\], .* got \[\]"),
        ([X], [Y, spec("z", 3, "time")], Reads(), r"outputs\[1\].shape: expected the axis of the steps first"),
        ([X], [spec("z", "time", "time")], Reads(), r"outputs\[0\].shape: expected .*, got \['time', 'time'\]"),
        ([X], [spec("z", "time", "own")], Finishes(), r"outputs\[0\].shape: expected .*, got \['time', 'own'\]"),
        (
            [spec("x", "time", 2, bound=UNBOUNDED)],
            [spec("z", "own")],
            Reads(),
            r"outputs\[0\].shape: expected a bound of the axis 'own': max_steps of Recurrent, or max_shape of the",
        ),
    ],
)
def test_what_does_not_fit(inputs: Any, outputs: Any, cell: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        axis_of(inputs, outputs, cell)


def test_finish_may_return_other_axes_of_the_inputs() -> None:
    wide = [X, spec("w", "width")]
    assert axis_of(wide, [spec("z", "width", "time")], Finishes()).name == "time"
    with pytest.raises(ConfigError, match=r"outputs\[0\].shape"):
        axis_of(wide, [spec("z", "width")], Starts())
