"""V2 answers: JSON and binary, and never a value that JSON has not."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

from app.contract import Answer, FinishedBatch, ModelInfo
from app.errors import BadRequest, OutputNotJson
from app.http.codecs.base import DecodedCall

from ..catalog import spec
from .models import ECHO, TEXT
from .models import encode_v2 as encode


def answer(*arrays: Any) -> Answer:
    return Answer(list(arrays), 0, 0, 1)


def asked(*outputs: tuple[int, bool]) -> DecodedCall:
    """For these outputs: index, and whether as binary. For all as JSON without any."""
    return DecodedCall(1, [], {}, outputs=[*outputs] or None)


WRITTEN = ModelInfo(
    "w", "1", "pytorch", ECHO.inputs, (spec("text", "UINT8", "written"), spec("n", "INT64")), own_axes=("written",)
)
TWO_ROWS = np.array([[7, 8, 9], [5, 0, 0]], np.uint8), np.array([3, 1])


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("binary", [False, True])
def test_rows_that_ran_for_different_lengths(rows: int, binary: bool) -> None:
    """Padded to the longest of them, and what each one's own length is."""
    text, n = (array[:rows] for array in TWO_ROWS)
    given = Answer([text, n], 0, 0, 1, lengths=[3, 1][:rows])
    body, length = encode(asked((0, binary), (1, False)), given, WRITTEN)
    first, second = json.loads(body[:length])["outputs"]
    told = {"lengths": "3,1"} if rows == 2 else {}
    assert first["shape"] == [rows, 3]
    assert first.get("parameters", {}) == ({**told, "binary_data_size": 3 * rows} if binary else told)
    assert (body[length:] == text.tobytes()) if binary else (first["data"] == text.ravel().tolist())
    assert "parameters" not in second


def test_one_output_of_rows_own_lengths_tells_them_too() -> None:
    info = dataclasses.replace(WRITTEN, outputs=WRITTEN.outputs[:1])
    given = Answer([TWO_ROWS[0]], 0, 0, 1, lengths=[3, 1])
    for outputs in ((), ((0, True),)):
        body, length = encode(asked(*outputs), given, info)
        assert json.loads(body[:length])["outputs"][0]["parameters"]["lengths"] == "3,1"


def test_strings_back() -> None:
    texts = np.array([["ß".encode()], [b""]], object)
    body, length = encode(asked(), answer(texts), TEXT)
    assert (json.loads(body)["outputs"][0]["data"], length) == (["ß", ""], None)
    body, length = encode(asked((0, True)), answer(texts), TEXT)
    assert body[length:] == b"\x02\0\0\0\xc3\x9f\0\0\0\0"
    with pytest.raises(BadRequest, match=r"'u'.*UTF-8.*binary"):
        encode(asked(), answer(np.array([[b"\xff"]], object)), TEXT)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("outputs", [(), ((0, False),)])
def test_what_json_has_not(wrong: float, outputs: Any) -> None:
    with pytest.raises(OutputNotJson, match=r"'y'.*binary"):
        encode(asked(*outputs), answer(np.array([[1, 2, 3, wrong]], "f4")), ECHO)


def test_null_as_a_text_is_no_nan() -> None:
    named = ModelInfo("null", "1", "pytorch", (spec("null", "FP32", 4),), (spec("null", "FP32", 4),))
    body, _ = encode(asked(), answer(np.ones((1, 4), "f4")), named)
    assert json.loads(body)["outputs"][0]["data"] == [1, 1, 1, 1]


def in_a_batch(values: np.ndarray[Any, Any]) -> list[Answer]:
    """One answer for each row of a batch, as the engine gives them."""
    batch = FinishedBatch([values])
    return [Answer(None, 0, 0, len(values), batch, row) for row in range(len(values))]


@pytest.mark.parametrize("shape", [(), (1,), (4,), (2, 3), (0,), (300,)])
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i8", "u1", "?"])
def test_rows_of_a_batch_are_encoded_as_alone(shape: tuple[int, ...], dtype: str) -> None:
    datatype = {"f4": "FP32", "f8": "FP64", "f2": "FP16", "i8": "INT64", "u1": "UINT8", "?": "BOOL"}[dtype]
    info = ModelInfo("m", "1", "test", (spec("x", "FP32"),), (spec("y", datatype, *shape),))
    for rows in (1, 3):
        values = np.random.default_rng(rows).normal(0, 20, (rows, *shape)).astype(dtype)
        for row, one in enumerate(in_a_batch(values)):
            alone = answer(values[row : row + 1])
            body, _ = encode(asked(), one, info)
            assert body == encode(asked(), alone, info)[0]
            (output,) = json.loads(body)["outputs"]
            assert output["shape"] == [1, *shape]
            assert np.array_equal(np.array(output["data"], dtype), values[row].ravel())
            body, length = encode(asked((0, True)), one, info)
            assert (body, length) == encode(asked((0, True)), alone, info)
            assert body[length:] == values[row].tobytes()
            assert json.loads(body[:length])["outputs"][0]["parameters"] == {"binary_data_size": values[row].nbytes}


def test_a_row_that_is_no_number_spoils_no_other_row() -> None:
    values = np.array([[1, 2, 3, 4], [1, np.nan, 3, 4], [5, 6, 7, np.inf], [0.1, 0.2, 0.3, 0.4]], "f4")
    good, bad, endless, last = in_a_batch(values)
    for one, numbers in ((good, [1, 2, 3, 4]), (last, [0.1, 0.2, 0.3, 0.4])):
        body, _ = encode(asked(), one, ECHO)
        assert json.loads(body)["outputs"][0]["data"] == numbers
    for one in (bad, endless):
        with pytest.raises(OutputNotJson, match="'y'"):
            encode(asked(), one, ECHO)
