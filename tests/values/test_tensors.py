"""JSON values into tensors: strict about types, ranges and counts; and back without losing what JSON has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import spec

from app.contract import DATATYPES, QUICK_VALUES
from app.errors import BadRequest
from app.values.tensors import has_bools, parse_values, to_json, written

INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]


def parsed(datatype: str, *values: Any) -> Any:
    return parse_values([*values], spec("x", datatype, len(values)), (1, len(values)), "f")


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_to_their_limits(datatype: str) -> None:
    limits = np.iinfo(datatype.lower())
    edge = [int(limits.min), int(limits.max)]
    values = parsed(datatype, *edge)
    assert (values.tolist(), values.dtype) == ([edge], DATATYPES[datatype])
    for beyond in (edge[0] - 1, edge[1] + 1):
        with pytest.raises(BadRequest, match=f"^f: a value is out of range for {datatype}"):
            parsed(datatype, beyond)


@pytest.mark.parametrize(("datatype", "top"), [("FP16", 65504.0), ("FP32", 3.4e38), ("FP64", 1.7e308)])
def test_floats_to_their_limits(datatype: str, top: float) -> None:
    values = parsed(datatype, -top, 0, top)
    assert (values.tolist()[0], values.dtype) == (pytest.approx([-top, 0, top]), DATATYPES[datatype])
    if datatype != "FP64":  # beyond its range JSON has no numbers
        with pytest.raises(BadRequest, match=f"out of range for {datatype}"):
            parsed(datatype, top * 1.01)


@pytest.mark.parametrize(
    ("datatype", "values", "message"),
    [
        *((datatype, [wrong], f"expected {datatype} values, got {kind}") for datatype in INTEGERS for wrong, kind in (
            (1.0, "the number 1.0"), ("1", "a string"), (None, "null"), (True, "a boolean"), ({}, "an obj"))),
        *((datatype, [0.5, wrong], "") for datatype in ("FP16", "FP32", "FP64") for wrong in ("1.5", None, True, [])),
        *(("BOOL", [wrong], "expected true and false") for wrong in (2, -1, 0.0, "true", None)),
        *(("BYTES", ["a", wrong], "expected strings, got") for wrong in (1, None, True, {})),
    ],
)  # fmt: skip
def test_values_of_another_type(datatype: str, values: list[Any], message: str) -> None:
    with pytest.raises(BadRequest, match=f"^f: {message}"):
        parsed(datatype, *values)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "expected 2 values for shape .*, got 0"),
        ([1], "expected 2 values for shape .*, got 1"),
        ([1, 2, 3], "expected 2 values for shape .*, got 3"),
        ([[]], "expected 2 values for shape .*, got 0"),
        ([[1], 2], "nested to one depth"),
        ("12", "a list of INT32 values, got a string"),
        (None, "got null"),
        ({"0": 1}, "got an object"),
    ],
)
def test_wrong_data(data: Any, words: str) -> None:
    with pytest.raises(BadRequest, match=f"^f: .*{words}"):
        parse_values(data, spec("x", "INT32", 2), (1, 2), "f")


def test_booleans_and_strings() -> None:
    assert parsed("BOOL", True, 0, 1).tolist() == [[True, False, True]]
    assert parse_values([["ß"], [""]], spec("x", "BYTES", 1), (2, 1), "f").tolist() == [["ß".encode()], [b""]]


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=100))
def test_floats_go_round(numbers: list[float]) -> None:
    """Through JSON and back, every float32 stays itself."""
    values = parse_values(numbers, spec("x", "FP32", len(numbers)), (1, len(numbers)), "f")
    text = orjson.dumps(to_json(values, "y"), option=orjson.OPT_SERIALIZE_NUMPY)
    assert np.array(orjson.loads(text), "f4").tolist() == [numbers]


@given(st.lists(st.sampled_from([True, False, None, 1.5, "rl", "tru", "n"]), max_size=4))
def test_words_are_found_in_a_text(values: list[Any]) -> None:
    text = orjson.dumps(values)
    assert has_bools(text) == any(type(value) is bool for value in values)


@pytest.mark.parametrize(
    "shape", [(0,), (3,), (QUICK_VALUES + 1,), (3 * QUICK_VALUES,), (7, QUICK_VALUES), (QUICK_VALUES, 2, 3)]
)
@pytest.mark.parametrize("dtype", ["<f4", "<i8", "?"])
def test_an_array_in_slices_is_written_as_in_one(shape: tuple[int, ...], dtype: str) -> None:
    values = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    assert written(values) == orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY)
