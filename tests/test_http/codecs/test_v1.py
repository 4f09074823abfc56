"""TensorFlow Serving's row format: one instance is one row, whatever its shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from app.errors import BadRequest
from app.http.codecs.v1 import decode_v1, encode_v1

from ..catalog import FakeServed, served, spec

Y = (spec("y", "FP32", 2),)
VECTOR = served("vector", (spec("x", "FP32", 4),), Y)
IMAGE = served("image", (spec("x", "UINT8", 2, 3),), Y)
SCALAR = served("scalar", (spec("x", "INT32"),), Y)
TEXT = served("text", (spec("text", "BYTES", 1),), Y)
TOKENS = served("tokens", (spec("ids", "INT64", "tokens"), spec("mask", "INT64", "tokens")), Y)


@pytest.mark.parametrize(
    ("model", "instances", "arrays"),
    [
        (VECTOR, [[1, 2, 3, 4], [5, 6, 7, 8]], [[[1, 2, 3, 4], [5, 6, 7, 8]]]),
        (VECTOR, [{"x": [1, 2, 3, 4]}], [[[1, 2, 3, 4]]]),
        (IMAGE, [[[1, 2, 3], [4, 5, 6]]], [[[[1, 2, 3], [4, 5, 6]]]]),
        (IMAGE, [[1, 2, 3, 4, 5, 6]], [[[[1, 2, 3], [4, 5, 6]]]]),
        (SCALAR, [1, 2, 3], [[1, 2, 3]]),
        (TEXT, [{"b64": "/wA="}, "a"], [[[b"\xff\0"], [b"a"]]]),
        (TEXT, [{"text": "a"}, {"text": {"b64": "YQ=="}}], [[[b"a"], [b"a"]]]),
        (
            TOKENS,
            [{"ids": [1, 2], "mask": [1, 1]}, {"mask": [1, 0], "ids": [3, 4]}],
            [[[1, 2], [3, 4]], [[1, 1], [1, 0]]],
        ),
    ],
)
def test_instances(model: FakeServed, instances: Any, arrays: list[Any]) -> None:
    call = decode_v1(model, {"instances": instances, "signature_name": "serving_default"})
    assert (call.rows, call.single) == (len(instances), False)
    assert [array.tolist() for array in call.arrays] == arrays
    assert [array.dtype for array in call.arrays] == [tensor.dtype for tensor in model.info.inputs]


@pytest.mark.parametrize(
    ("model", "body", "words"),
    [
        (VECTOR, [], ["body:", "instances"]),
        (VECTOR, {"inputs": [[1, 2, 3, 4]]}, ["inputs:", "instances"]),
        (VECTOR, {"instances": []}, ["instances:", "at least one"]),
        (VECTOR, {"instances": {"x": 1}}, ["instances:", "list"]),
        (VECTOR, {"instances": [1, 2, 3, 4]}, ["instances:", "[rows, 4]", "got [4]"]),
        (VECTOR, {"instances": [[1, 2, 3, 4], [1, 2]]}, ["instances[1]:", "got 2"]),
        (VECTOR, {"instances": [{"x": [1, 2, 3, 4], "z": 1}]}, ["instances[0]:", "unknown input 'z'"]),
        (VECTOR, {"instances": [{"x": [1, 2, 3, 4]}, [1, 2, 3, 4]]}, ["instances[1]:", "an object with input 'x'"]),
        (TEXT, {"instances": [{"b64": "?"}]}, ["instances:", "base64"]),
        (TOKENS, {"instances": [{"ids": [1]}]}, ["instances[0]:", "'mask' is missing"]),
        (TOKENS, {"instances": [{"ids": [1], "mask": [1, 1]}]}, ["instances[].mask:", "'tokens'"]),
    ],
)
def test_bodies_that_do_not_fit(model: FakeServed, body: Any, words: list[str]) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_v1(model, body)
    assert [word for word in words if word not in caught.value.message] == [], caught.value.message


def test_files_as_base64_are_decoded_by_the_model() -> None:
    def lengths(content_type: str, body: bytes) -> dict[str, Any]:
        return {"x": np.full(4, len(body), np.float32)}

    model = served("m", VECTOR.info.inputs, Y, decode=lengths)
    call = decode_v1(model, {"instances": [{"b64": "YWI="}, {"b64": "YQ=="}]})
    assert (call.rows, call.single) == (2, False)
    assert call.arrays[0].tolist() == [[2] * 4, [1] * 4]
    with pytest.raises(BadRequest, match=r"instances\[1\]: b64: expected a base64 string"):
        decode_v1(model, {"instances": [{"b64": "YWI="}, {"b64": "?"}]})


def encoded(value: Any) -> Any:
    return orjson.loads(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY))


def test_predictions_of_one_output_are_its_rows() -> None:
    rows = np.array([[0.1, 2], [3, 4]], np.float32)
    assert encoded(encode_v1(VECTOR, [rows])) == {"predictions": [[0.1, 2], [3, 4]]}


def test_predictions_of_several_outputs_are_objects() -> None:
    model = served("two", VECTOR.info.inputs, (spec("y", "FP32", 2), spec("t", "BYTES")))
    outputs = [np.array([[1, 2], [3, 4]], np.float32), np.array([b"a", b"b"], object)]
    assert encoded(encode_v1(model, outputs)) == {"predictions": [{"y": [1, 2], "t": "a"}, {"y": [3, 4], "t": "b"}]}
