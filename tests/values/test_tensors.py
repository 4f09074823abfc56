"""JSON values into tensors: strict about types, ranges and counts; and back without losing what JSON has not."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from specs import spec

from app.contract import DATATYPES
from app.errors import BadRequest
from app.values.tensors import has_bools, parse_values, to_json

INTEGERS = [f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)]


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
