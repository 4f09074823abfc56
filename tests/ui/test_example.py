"""An example is a body that the V2 codec takes, whatever the model's inputs are."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from api.catalog import FakeServed, spec

from app.api.codecs.v2 import V2
from app.api.http import Limits
from app.contract import Model, ModelInfo, SampleRow, TensorSpec
from app.ui.example import LONGEST, example_of

LIMITS = Limits(1 << 20, 1 << 20, 1 << 20, 100, 1.0, 10)


def served_of(*inputs: TensorSpec, samples: tuple[SampleRow, ...] = ()) -> FakeServed:
    info = ModelInfo("m", "1", "test", inputs, (spec("y", "FP32", 1),))
    return FakeServed(info, Model(info, lambda *tensors: tensors, samples=samples))


@pytest.mark.parametrize(
    ("inputs", "data"),
    [
        ((spec("x", "FP32", 2),), [[1.0, 1.0]]),
        ((spec("x", "FP32"),), [1.0]),
        ((spec("x", "FP16", 2),), [[1.0, 1.0]]),
        ((spec("x", "BOOL", 1),), [[True]]),
        ((spec("x", "UINT8", 1),), [[1]]),
        ((spec("x", "BYTES", 1),), [["text"]]),
        ((spec("ids", "INT64", "tokens", bound=3),), [[1, 1, 1]]),
        ((spec("ids", "INT64", "tokens", bound=500),), [[1] * 8]),
        ((spec("ids", "INT64", "tokens", bound=3), spec("mask", "BOOL", "tokens", mask_of="ids")), [[1, 1, 1]]),
    ],
)
def test_plain_values_in_the_shape_of_one_row(inputs: tuple[TensorSpec, ...], data: Any) -> None:
    served = served_of(*inputs)
    body = example_of(served)
    assert [tensor["data"] for tensor in body["inputs"]] == [data]
    call = V2().decode(served, {}, orjson.dumps(body), LIMITS)
    assert call.rows == 1


def test_bfloat16_is_shown_as_numbers() -> None:
    """Though V2 takes it as binary only, which the server says to whoever sends the example."""
    assert example_of(served_of(spec("x", "BF16", 2)))["inputs"][0]["data"] == [[1.0, 1.0]]


def test_the_owners_own_row_comes_first() -> None:
    """Its floats have no more digits than they need, and its text is text."""
    row = SampleRow(
        (np.array([0.1, np.nan], np.float32), np.array([b"caf\xc3\xa9"], object), np.array([0x3FC0], np.uint16)),
        parameters={"k": 1},
    )
    served = served_of(spec("x", "FP32", 2), spec("t", "BYTES", 1), spec("b", "BF16", 1), samples=(row,))
    body = example_of(served)
    assert [tensor["data"] for tensor in body["inputs"]] == [[[0.1, 0.0]], [["café"]], [[1.5]]]
    assert [tensor["shape"] for tensor in body["inputs"]] == [[1, 2], [1, 1], [1, 1]]
    assert body["parameters"] == {"k": 1}


def test_very_many_values_are_not_written_out() -> None:
    body = example_of(served_of(spec("image", "FP32", 3, 2000, 2000)))
    tensor = body["inputs"][0]
    assert (tensor["shape"], tensor["data"]) == ([1, 3, 2000, 2000], {"fill": 1.0})
    assert example_of(served_of(spec("x", "UINT8", LONGEST)))["inputs"][0]["data"] == [[1] * LONGEST]
