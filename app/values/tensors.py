"""Converts JSON values to the bytes of typed tensors and back, and checks types, ranges and counts.

Numbers are packed by `struct.pack`, which checks their types and ranges in C and returns the bytes for a slot. It takes
6 us for 1,024 floats; numpy takes 16 us and would accept the string "1.5" as a number.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from math import prod
from typing import Any

import numpy as np
import orjson

from app.contract import FLOATS, QUICK_VALUES, Array, SampleRow, TensorSpec
from app.errors import BadRequest, OutputNotJson

#: struct's code of each datatype whose JSON values are numbers.
NUMBERS = {
    "FP16": "e", "FP32": "f", "FP64": "d", "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q",
    "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
}  # fmt: skip


#: A letter of true and false that no number has: searching one byte is 100 times as fast as a word.
IN_TRUE, IN_FALSE = b"rl"


def has_bools(text: bytes) -> bool:
    """Whether a JSON text contains true or false, even within a string."""
    return (IN_TRUE in text and b"true" in text) or (IN_FALSE in text and b"false" in text)


@lru_cache(maxsize=256)
def packer(datatype: str, count: int) -> Callable[..., bytes]:
    """A function that packs `count` numbers, given as arguments, into the little-endian bytes of `datatype`.

    It raises struct.error or OverflowError for a wrong count, type or range, and accepts booleans as 0 and 1.
    """
    return struct.Struct(f"<{count}{NUMBERS[datatype]}").pack


def check_shape(spec: TensorSpec, shape: Sequence[object], field: str, lengths: dict[str, int]) -> tuple[int, ...]:
    """Check a shape [rows, *row] against the spec, and add the lengths of variable axes to `lengths`.

    Raises BadRequest that names `field` if the rank or a fixed axis is wrong, an axis exceeds its bound, or `lengths`
    has another length for an axis already.
    """
    if spec.shape in ((), (1,)) and shape and list(shape[1:]) in ([], [1]):
        shape = [*shape[:1], *spec.shape]  # one value a row: clients write [rows] or [rows, 1]
    if len(shape) != len(spec.shape) + 1:
        raise BadRequest(f"{field}: expected {_shape_text(spec)}, got {shown(list(shape))}")
    rows = shape[0]
    if type(rows) is not int or rows < 1:
        what = "at least 1 row" if type(rows) is int else "a whole number of rows"
        raise BadRequest(f"{field}: expected {what} in the leading dimension, got {shown(rows)}")
    row = tuple(shape[1:])
    if spec.fixed and row == spec.shape and set(map(type, row)) <= {int}:  # 4.0 equals 4
        return (rows, *spec.shape)
    least = " with at least 1 along each axis" if 0 in row else ""
    for axis, expected, bound, length in zip(spec.axes, spec.shape, spec.bounds, row, strict=True):
        if type(length) is not int or (not 1 <= length <= (bound or length) if axis else length != expected):
            raise BadRequest(f"{field}: expected {_shape_text(spec)}{least}, got {shown(list(shape))}")
        if axis and lengths.setdefault(axis, length) != length:
            before = lengths[axis]
            raise BadRequest(
                f"{field}: axis {axis!r} has length {length} here, but {before} in an input or file before it"
            )
    return (rows, *row)  # type: ignore[arg-type]  # each was just checked to be an int


def _shape_text(spec: TensorSpec) -> str:
    return f"shape [{', '.join(['rows', *spec.axes_shown()])}]"


def parse_values(data: object, spec: TensorSpec, shape: tuple[int, ...], field: str) -> Array:
    """Like `pack_values`, but as a read-only array of `spec.dtype` and `shape`."""
    packed = pack_values(data, spec, shape, field)
    return packed if isinstance(packed, np.ndarray) else np.frombuffer(packed, spec.dtype).reshape(shape)


def pack_values(data: object, spec: TensorSpec, shape: tuple[int, ...], field: str) -> memoryview | Array:
    """A JSON list, nested or flat, as a tensor of `shape` (rows first): its bytes, or an array for BOOL and BYTES.

    Raises BadRequest that names `field`.
    """
    if type(data) is not list:
        raise BadRequest(f"{field}: expected a list of {spec.datatype} values, got {_kind(data)}")
    if spec.datatype == "BYTES":
        return _parse_strings(data, shape, field)
    if spec.datatype == "BOOL":
        return _parse_bools(data, shape, field)
    if spec.datatype == "BF16":
        raise BadRequest(f"{field}: BF16 travels as binary only")
    flat = _flatten(data, field)
    _check_count(data, len(flat), shape, field)
    try:
        packed = packer(spec.datatype, len(flat))(*flat)
    except (struct.error, OverflowError):
        raise BadRequest(f"{field}: {_wrong_number(flat, spec.datatype)}") from None
    if bool in set(map(type, flat)):
        raise BadRequest(f"{field}: expected {spec.datatype} values, got a boolean")
    return memoryview(packed)


def _wrong_number(data: list[Any], datatype: str) -> str:
    """Why `struct.pack` refused these values."""
    kinds: tuple[type, ...] = (int, float) if datatype in FLOATS else (int,)
    wrong = next((value for value in data if type(value) not in kinds), None)
    if wrong is None and not any(value is None for value in data):
        return f"a value is out of range for {datatype}"
    return f"expected {datatype} values, got {_kind(wrong)}"


def _flatten(data: list[Any], field: str) -> list[Any]:
    """Flatten nested lists level by level. On each level all elements must be lists, or none."""
    while data and type(data[0]) is list:
        if set(map(type, data)) != {list}:
            raise BadRequest(f"{field}: expected lists nested to one depth, got lists and values side by side")
        data = list(chain.from_iterable(data))
    return data


def _parse_strings(data: list[Any], shape: tuple[int, ...], field: str) -> Array:
    data = _flatten(data, field)
    wrong = next((value for value in data if type(value) is not str and not is_base64(value)), None)
    if wrong is not None or None in data:
        raise BadRequest(f"{field}: expected strings, got {_kind(wrong)}")
    _check_count(data, len(data), shape, field)
    values = [value.encode() if type(value) is str else from_base64(value, field) for value in data]
    return np.array(values, object).reshape(shape)


def is_base64(value: object) -> bool:
    """Whether a JSON value is `{"b64": ...}`, TensorFlow Serving's form of bytes."""
    return type(value) is dict and len(value) == 1 and "b64" in value


def from_base64(value: Any, field: str) -> bytes:
    try:
        text = value["b64"].encode().translate(None, b" \t\r\n")
        return base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError, AttributeError):
        raise BadRequest(f"{field}: b64: expected a base64 string") from None


def _parse_bools(data: list[Any], shape: tuple[int, ...], field: str) -> Array:
    data = _flatten(data, field)
    wrong = next((v for v in data if type(v) is not bool and not (type(v) is int and 0 <= v <= 1)), ...)
    if wrong is not ...:
        raise BadRequest(f"{field}: expected true and false, got {_kind(wrong)}")
    _check_count(data, len(data), shape, field)
    return np.array(data, np.bool_).reshape(shape)


def _check_count(data: list[Any], count: int, shape: tuple[int, ...], field: str) -> None:
    if count != prod(shape):
        differ = len({len(row) for row in data if type(row) is list}) > 1
        why = " in rows of different lengths: send each as a request of its own, or all to V1 or /predict"
        got = f"{count}{why if differ else ''}"
        raise BadRequest(f"{field}: expected {prod(shape)} values for shape {list(shape)}, got {got}")


def shown(value: object, most: int = 60) -> str:
    """A client's value for a message: short, however large or deeply nested it is."""
    if isinstance(value, list | tuple | dict) and len(value) > most:
        return f"{len(value)} elements"
    try:
        text = repr(value)
    except RecursionError:
        return "something nested too deeply"
    return text if len(text) <= most else text[:most] + "..."


def _kind(value: object) -> str:
    """The kind of a JSON value, in words."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"the number {value}"[:40]
    if isinstance(value, str):
        return "a string"
    return {type(None): "null", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)


def to_json(values: Array, name: str) -> Any:
    """An output in a form that orjson encodes with OPT_SERIALIZE_NUMPY: the array itself, or nested lists of strings.

    float32 stays float32, so that 0.1 is written as 0.1; NaN and infinities are written as null. Raises BadRequest for
    bytes that are not UTF-8: the output is right, but the request asked for it in the wrong form.
    """
    if values.dtype == object:
        try:
            return _texts(values.tolist())
        except UnicodeDecodeError:
            raise BadRequest(f"output {name!r} is no UTF-8: ask V2 for it as binary, or encode it in present") from None
    return np.ascontiguousarray(values)


def written(values: Array) -> bytes:
    """The JSON of an array of numbers. Of a large one in slices: for each, orjson keeps the interpreter lock."""
    if not (step := QUICK_VALUES * len(values) // max(1, values.size)):  # each of them is larger than a slice
        return b"[%s]" % b",".join(map(written, values))
    parts = (values[at : at + step] for at in range(0, len(values), step))
    return b"[%s]" % b",".join([orjson.dumps(part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1] for part in parts])


def check_finite(values: Array, name: str) -> None:
    """Raise OutputNotJson if an output of V2, which has a binary form, holds NaN or infinity."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise OutputNotJson(f"output {name!r} holds NaN or infinity, which JSON has not: ask for it as binary")


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.decode() if isinstance(value, bytes) else str(value)


# requests of sample rows


def row_values(specs: Sequence[TensorSpec], row: SampleRow) -> dict[str, Any]:
    """The values of each input by name; bytes that are not UTF-8 as `{"b64": ...}`. `specs`: what clients send.

    Raises OutputNotJson for NaN and infinities.
    """
    for spec, array in zip(specs, row.arrays, strict=True):
        check_finite(array, spec.name)
    named = {
        spec.name: [_or_base64(array.tolist())] if spec.datatype == "BYTES" else to_json(array[None], spec.name)
        for spec, array in zip(specs, row.arrays, strict=True)
    }
    # Through JSON and back, to get short floats: FP32 0.1 converted by Python has many digits.
    columns = orjson.loads(orjson.dumps(named, option=orjson.OPT_SERIALIZE_NUMPY))
    return {name: column[0] for name, column in columns.items()}


def v2_request(
    specs: Sequence[TensorSpec], row: SampleRow, values: Mapping[str, Any] | None = None, rows: int = 1
) -> dict[str, Any]:
    """A body of `rows` equal rows. `values`: the result of `row_values` for the row, if known."""
    values = row_values(specs, row) if values is None else values
    inputs = [
        v2_tensor(spec, (rows, *array.shape), [values[spec.name]] * rows)
        for spec, array in zip(specs, row.arrays, strict=True)
    ]
    return {**({"parameters": dict(row.parameters)} if row.parameters else {}), "inputs": inputs}


def v2_tensor(spec: TensorSpec, shape: Sequence[int], data: Any) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(shape), "datatype": spec.datatype, "data": data}


def _or_base64(value: Any) -> Any:
    """As `_texts`; bytes that are not UTF-8 become `{"b64": ...}`."""
    if isinstance(value, list):
        return [_or_base64(item) for item in value]
    try:
        return _texts(value)
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
