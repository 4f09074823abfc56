"""Arrays to tensors and back: every datatype, both ways, and what is refused before it is sent."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from starling_client import BadAnswer
from starling_client.tensors import DTYPES, from_bytes, from_json, to_array, to_bytes, to_json

NUMBERS = [name for name in DTYPES if name not in ("BYTES", "BF16")]


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers(datatype: str) -> None:
    array = to_array("x", datatype, [[0, 1], [1, 0]] if datatype != "BOOL" else [[False, True], [True, False]])
    assert array.dtype == DTYPES[datatype]
    raw = to_bytes(datatype, array)
    assert len(raw) == 4 * array.itemsize
    back = from_bytes("x", datatype, (2, 2), memoryview(raw))
    assert (back.dtype, back.tolist(), back.flags.writeable) == (array.dtype, array.tolist(), True)
    data = json.loads(json.dumps(to_json("x", datatype, array)))
    assert from_json("x", datatype, (2, 2), data).tolist() == array.tolist()


def test_bytes_are_little_endian_and_row_major() -> None:
    strided = np.arange(4, dtype=">i2").reshape(2, 2).T
    assert to_bytes("INT16", to_array("x", "INT16", strided)) == b"\0\0\2\0\1\0\3\0"


@pytest.mark.parametrize(
    "values",
    [
        ["ab", "", "\u00fc"],
        [b"ab", b"", "\u00fc"],
        np.array(["ab", "", "\u00fc"]),
        np.array(["ab", "", "\u00fc"], object),
    ],
)
def test_texts(values: Any) -> None:
    array = to_array("x", "BYTES", values)
    assert array.tolist() == [b"ab", b"", b"\xc3\xbc"]
    raw = to_bytes("BYTES", array)
    assert raw == b"\2\0\0\0ab\0\0\0\0\2\0\0\0\xc3\xbc"
    assert from_bytes("x", "BYTES", (3, 1), memoryview(raw)).tolist() == [[b"ab"], [b""], [b"\xc3\xbc"]]
    assert from_json("x", "BYTES", (3,), to_json("x", "BYTES", array)).tolist() == array.tolist()


def test_bytes_that_json_cannot_hold() -> None:
    array = to_array("x", "BYTES", [b"\xff\0"])
    assert to_bytes("BYTES", array) == b"\2\0\0\0\xff\0"
    with pytest.raises(ValueError, match="UTF-8"):
        to_json("x", "BYTES", array)


def test_bfloat_is_rounded_to_even_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    numbers = np.random.default_rng(1).standard_normal(1000).astype("f4")
    special = np.array([0, -0.0, 1, 1.00390625, 1.01171875, 3.4e38, np.inf, -np.inf, np.nan, 1e-45], "f4")
    array = np.concatenate([numbers, special])
    bits = torch.tensor(array).to(torch.bfloat16)
    back = from_bytes("x", "BF16", array.shape, memoryview(to_bytes("BF16", to_array("x", "BF16", array))))
    assert np.array_equal(back, bits.to(torch.float32).numpy(), equal_nan=True)
    with pytest.raises(ValueError, match="no JSON form"):
        to_json("x", "BF16", array)


@pytest.mark.parametrize(
    ("datatype", "values", "message"),
    [
        ("UINT8", [256], "256 is no UINT8"),
        ("INT32", [1.5], "expected INT32, got values of float64"),
        ("BOOL", [1], "expected BOOL"),
        ("FP32", [1e40], "too large for FP32"),
        ("FP32", ["1"], "expected FP32"),
        ("BYTES", [1], "expected str or bytes, got int"),
        ("FP8", [1], "datatype FP8 is not known"),
    ],
)
def test_values_that_do_not_fit(datatype: str, values: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"input 'x': .*{message}"):
        to_array("x", datatype, values)


@pytest.mark.parametrize(
    ("datatype", "shape", "raw"),
    [
        ("FP32", (2,), b"1234"),
        ("BYTES", (1,), b"\5\0\0\0ab"),
        ("BYTES", (2,), b"\0\0\0\0"),
        ("BYTES", (1,), b"\0\0\0\0x"),
        ("BYTES", (1 << 60,), b"\0\0\0\0"),
    ],
)
def test_bytes_that_are_no_tensor(datatype: str, shape: tuple[int, ...], raw: bytes) -> None:
    with pytest.raises(BadAnswer, match="output 'y'"):
        from_bytes("y", datatype, shape, memoryview(raw))


@pytest.mark.parametrize(
    ("datatype", "data"), [("FP32", ["a"]), ("FP32", [1, 2]), ("UINT8", [300]), ("BYTES", [1]), ("FP32", {"a": 1})]
)
def test_json_that_is_no_tensor(datatype: str, data: Any) -> None:
    with pytest.raises(BadAnswer, match="output 'y'"):
        from_json("y", datatype, (1,), data)
