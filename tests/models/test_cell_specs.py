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
        (
            axis_of([X], [spec("a", "time"), spec("b", "written", 2), Y]),
            {"own": (False, True, False), "followers": ("a",)},
        ),
        # finish may return other axes of the inputs
        (axis_of([X, spec("w", "width")], [spec("z", "width", "time")], Finishes()), {"name": "time"}),
    ],
)
def test_the_axis_of_the_steps(axis: Any, expected: dict[str, Any]) -> None:
    assert {key: getattr(axis, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("inputs", "outputs", "cell", "message"),
    [
        ([X, spec("t", 1, datatype="BYTES")], [Y], Starts(), r"inputs\[1\].datatype: expected a numeric type .*BYTES'"),
        ([spec("x")], [Y], Reads(), r"inputs\[0\].shape: expected \[length, ...\], .* got \[\]"),
        ([X], [Y, spec("z", 3, "time")], Reads(), r"outputs\[1\].shape: expected the axis of the steps first"),
        ([X], [spec("z", "time", "time")], Reads(), r"outputs\[0\].shape: expected .*, got \['time', 'time'\]"),
        (
            [UNBOUND],
            [spec("z", "own")],
            Reads(),
            r"outputs\[0\].shape: expected a bound of the axis 'own'",
        ),
    ],
)
def test_what_does_not_fit(inputs: Any, outputs: Any, cell: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        axis_of(inputs, outputs, cell)
