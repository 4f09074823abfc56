"""An example, and what a form begins with, is a body that the V2 codec takes, whatever the model's inputs are."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from app.contract import Model, ModelInfo, SampleRow, TensorSpec
from app.http.codecs.v2 import V2
from app.http.examples import READABLE, form_body

from .catalog import FakeServed, spec
from .echo import LIMITS


def served_of(*inputs: TensorSpec, row: SampleRow | None = None) -> FakeServed:
    info = ModelInfo("m", "1", "test", inputs, (spec("y", "FP32", 1),))
    return FakeServed(info, Model(info, lambda *tensors: tensors), row)


@pytest.mark.parametrize(
    ("inputs", "data"),
    [
        ((spec("x", "FP32", 2),), [[1.0, 1.0]]),
        ((spec("x", "BOOL", 1),), [[True]]),
        ((spec("x", "BYTES", 1),), [["text"]]),
        ((spec("ids", "INT64", "tokens", bound=500),), [[1] * 8]),
        ((spec("ids", "INT64", "tokens", bound=3), spec("mask", "BOOL", "tokens", mask_of="ids")), [[1, 1, 1]]),
    ],
)
def test_plain_values_in_the_shape_of_one_row(inputs: tuple[TensorSpec, ...], data: Any) -> None:
    served = served_of(*inputs)
    body = form_body(served)
    assert [tensor["data"] for tensor in body["inputs"]] == [data]
    assert V2().decode(served, {}, orjson.dumps(body), LIMITS).rows == 1


def test_the_row_that_it_was_tried_with_comes_first() -> None:
    """Its floats have no more digits than they need, and its text is text."""
    row = SampleRow((np.array([0.1, 2], np.float32), np.array([b"caf\xc3\xa9"], object)), parameters={"k": 1})
    body = form_body(served_of(spec("x", "FP32", 2), spec("t", "BYTES", 1), row=row))  # type: ignore[arg-type]
    assert [tensor["data"] for tensor in body["inputs"]] == [[[0.1, 2.0]], [["café"]]]
    assert [tensor["shape"] for tensor in body["inputs"]] == [[1, 2], [1, 1]]
    assert body["parameters"] == {"k": 1}


def test_what_json_has_not_is_made_up_of_the_same_shape() -> None:
    row = SampleRow((np.array([np.nan, 1, 1], np.float32),))
    assert form_body(served_of(spec("x", "FP32", "n"), row=row))["inputs"][0]["data"] == [[1, 1, 1]]  # type: ignore[arg-type]


def test_very_many_values_are_not_written_out() -> None:
    body = form_body(served_of(spec("image", "FP32", 3, 2000, 2000)))
    tensor = body["inputs"][0]
    assert (tensor["shape"], tensor["data"]) == ([1, 3, 2000, 2000], {"fill": 1.0})
    assert form_body(served_of(spec("x", "UINT8", READABLE)))["inputs"][0]["data"] == [[1] * READABLE]
