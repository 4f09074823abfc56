"""JSON values into tensors: strict about types, ranges and counts; and back without losing what JSON has not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.contract import DATATYPES
from app.errors import BadRequest, OutputNotJson
from app.http.codecs.tensors import check_rows, check_shape, has_bools, has_null, parse_values, to_json

from ..catalog import spec

INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("rows", [0, -1, 1.0, "1", None, True, [1]])
def test_wrong_rows(rows: Any) -> None:
    with pytest.raises(BadRequest, match=r"^f: expected at least 1 row"):
        check_rows(rows, "f")


def test_shapes() -> None:
    lengths: dict[str, int] = {}
    assert check_shape(spec("x", "FP32", 4), [3, 4], "f", lengths) == (3, 4)
    assert check_shape(spec("x", "FP32"), [3], "f", lengths) == (3,)
    assert lengths == {}
    assert check_shape(spec("x", "FP32", "n", 2), [1, 8, 2], "f", lengths) == (1, 8, 2)
    assert lengths == {"n": 8}


@pytest.mark.parametrize(
    ("tensor", "shape", "words"),
    [
        (spec("x", "FP32", 4), [3], "shape [rows, 4], got [3]"),
        (spec("x", "FP32", 4), [3, 5], "shape [rows, 4], got [3, 5]"),
        (spec("x", "FP32", 4), [], "shape [rows, 4], got []"),
        (spec("x", "FP32", 4), [1, -4], "got [1, -4]"),
        (spec("x", "FP32", "n"), [1, 9], "shape [rows, n <= 8], got [1, 9]"),
        (spec("x", "FP32", "n"), [1, 0], "got [1, 0]"),
        (spec("x", "FP32", "n"), [1, -1], "a length for each variable axis"),
        (spec("x", "FP32", "n"), [1, True], "n <= 8"),
        (spec("x", "FP32", "n"), [1, 2.0], "n <= 8"),
        (spec("x", "FP32", "n"), [1, 1 << 70], "n <= 8"),
        (spec("x", "FP32", "m"), [1, 3], "axis 'm' has length 3 here, but 2 in an input"),
    ],
)
def test_wrong_shapes(tensor: Any, shape: list[Any], words: str) -> None:
    with pytest.raises(BadRequest, match=f"^f: .*{re.escape(words)}"):
        check_shape(tensor, shape, "f", {"m": 2})


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_to_their_limits(datatype: str) -> None:
    limits = np.iinfo(datatype.lower())
    edge = [int(limits.min), int(limits.max)]
    values = parse_values(edge, spec("x", datatype, 2), (1, 2), "f")
    assert (values.tolist(), values.dtype) == ([edge], DATATYPES[datatype])
    for beyond in (edge[0] - 1, edge[1] + 1):
        with pytest.raises(BadRequest, match=f"^f: a value is out of range for {datatype}"):
            parse_values([beyond], spec("x", datatype, 1), (1, 1), "f")
    for wrong, kind in (
        (1.0, "the number 1.0"),
        ("1", "a string"),
        (None, "null"),
        (True, "a boolean"),
        ({}, "an obj"),
    ):
        with pytest.raises(BadRequest, match=f"^f: expected {datatype} values, got {kind}"):
            parse_values([wrong], spec("x", datatype, 1), (1, 1), "f")


@pytest.mark.parametrize(("datatype", "top"), [("FP16", 65504.0), ("FP32", 3.4e38), ("FP64", 1.7e308)])
def test_floats_to_their_limits(datatype: str, top: float) -> None:
    values = parse_values([-top, 0, top], spec("x", datatype, 3), (1, 3), "f")
    assert (values.tolist()[0], values.dtype) == (pytest.approx([-top, 0, top]), DATATYPES[datatype])
    if datatype != "FP64":  # beyond its range JSON has no numbers
        with pytest.raises(BadRequest, match=f"out of range for {datatype}"):
            parse_values([top * 1.01], spec("x", datatype, 1), (1, 1), "f")
    for wrong in ("1.5", None, True, []):
        with pytest.raises(BadRequest, match=r"^f: "):
            parse_values([0.5, wrong], spec("x", datatype, 2), (1, 2), "f")


@pytest.mark.parametrize("data", [[1, 2, 3, 4, 5, 6], [[1, 2, 3], [4, 5, 6]], [[[1], [2], [3]], [[4], [5], [6]]]])
def test_nested_as_it_likes(data: Any) -> None:
    values = parse_values(data, spec("x", "INT32", 3), (2, 3), "f")
    assert values.tolist() == [[1, 2, 3], [4, 5, 6]]


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


def test_booleans() -> None:
    assert parse_values([True, 0, 1], spec("x", "BOOL", 3), (1, 3), "f").tolist() == [[True, False, True]]
    for wrong in (2, -1, 0.0, "true", None):
        with pytest.raises(BadRequest, match=r"^f: expected true and false"):
            parse_values([wrong], spec("x", "BOOL", 1), (1, 1), "f")


def test_strings() -> None:
    assert parse_values([["ß"], [""]], spec("x", "BYTES", 1), (2, 1), "f").tolist() == [["ß".encode()], [b""]]
    for wrong in (1, None, True, {}):
        with pytest.raises(BadRequest, match=r"^f: expected strings, got"):
            parse_values(["a", wrong], spec("x", "BYTES", 1), (2, 1), "f")


def test_bfloat16_has_no_json() -> None:
    with pytest.raises(BadRequest, match=r"^f: BF16 travels as binary only"):
        parse_values([1], spec("x", "BF16", 1), (1, 1), "f")


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
    assert has_null(text) == (None in values)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("datatype", ["f2", "f4", "f8"])
def test_not_numbers(wrong: float, datatype: str) -> None:
    with pytest.raises(OutputNotJson, match=r"output 'y'.*binary"):
        to_json(np.array([1, wrong], datatype), "y")


def test_texts_back() -> None:
    assert to_json(np.array([[b"a", "b"]], object), "y") == [["a", "b"]]
    with pytest.raises(BadRequest, match="output 'y' holds bytes that are not UTF-8: ask for it as binary"):
        to_json(np.array([b"\xff"], object), "y")
