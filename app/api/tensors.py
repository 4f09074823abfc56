"""JSON values into typed arrays and back: strict about types, ranges and counts, and quick about it.

Numbers go through `array.array`, which checks each value's type in C. `numpy.array(list)` costs about the same and
would turn the string "1.5" into a number, and one long string among numbers into gigabytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import Any

import numpy as np

from app.contract import Array, TensorSpec
from app.errors import BadRequest, OutputNotJson

_FLOATS = frozenset({"FP16", "FP32", "FP64"})
_SMALL = 64  # below this many values Python's min and max beat numpy's


_WIDE = {"d": np.float64, "q": np.int64, "Q": np.uint64}


def _number(datatype: str) -> tuple[str, float, float]:
    if datatype in _FLOATS:
        top = float(np.finfo(datatype.replace("FP", "float")).max)
        return "d", -top, top
    kind = np.iinfo(datatype.lower())
    return "Q" if datatype == "UINT64" else "q", int(kind.min), int(kind.max)


#: Datatypes whose JSON values are numbers: the type code to check them with, the least and the greatest.
NUMBERS = {name: _number(name) for name in [*_FLOATS, *(f"{u}INT{b}" for u in ("", "U") for b in (8, 16, 32, 64))]}


def check_rows(rows: object, field: str) -> int:
    """The leading dimension of a shape: an integer of at least 1."""
    if type(rows) is not int or rows < 1:
        raise BadRequest(f"{field}: expected at least 1 row in the leading dimension, got {rows!r}")
    return rows


def check_shape(spec: TensorSpec, shape: Sequence[object], field: str, lengths: dict[str, int]) -> tuple[int, ...]:
    """A full shape [rows, *row] against the spec; variable axes leave their length in `lengths`.

    Raises BadRequest that names `field` when the rank, a fixed axis, a bound or an axis seen before disagrees.
    """
    if len(shape) != len(spec.shape) + 1:
        raise BadRequest(f"{field}: expected {_shape_text(spec)}, got {list(shape)}")
    rows = check_rows(shape[0], field)
    row = tuple(shape[1:])
    if row == spec.shape:  # a bool equals an int here and reshapes as one
        if spec.fixed:
            return (rows, *spec.shape)
        raise BadRequest(f"{field}: expected a length for each variable axis, got {list(shape)}")
    for axis, expected, bound, length in zip(spec.axes, spec.shape, spec.bounds, row, strict=True):
        if type(length) is not int or (not axis and length != expected) or (axis and not 1 <= length <= bound):
            raise BadRequest(f"{field}: expected {_shape_text(spec)}, got {list(shape)}")
        if axis and lengths.setdefault(axis, length) != length:
            raise BadRequest(f"{field}: axis {axis!r} has length {length} here and {lengths[axis]} in another input")
    return (rows, *row)  # type: ignore[arg-type]  # each was just checked to be an int


def _shape_text(spec: TensorSpec) -> str:
    axes = [f"{axis} <= {bound}" if axis else str(bound) for axis, bound in zip(spec.axes, spec.bounds, strict=True)]
    return f"shape [{', '.join(['rows', *axes])}]"


def parse_values(
    data: object, spec: TensorSpec, shape: tuple[int, ...], field: str, *, may_hold_bools: bool = True
) -> Array:
    """A JSON list, nested or flat, as an array of `spec.dtype` and `shape` (rows first).

    `may_hold_bools=False` promises that no JSON boolean is among the values, which saves looking at each one's type.
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
    try:
        typed = parse_numbers(data, spec, shape)
    except TypeError:
        data = _flatten(data, field)
        typed = _parse_flat(data, spec, shape, field)
    except OverflowError:
        raise BadRequest(f"{field}: a value is out of range for {spec.datatype}") from None
    if may_hold_bools and bool in set(map(type, data)):
        raise BadRequest(f"{field}: expected {spec.datatype} values, got a boolean")
    if typed is None:
        _check_count(len(data), shape, field)
        raise BadRequest(f"{field}: a value is out of range for {spec.datatype}")
    return typed


def parse_numbers(data: Any, spec: TensorSpec, shape: tuple[int, ...]) -> Array | None:
    """A flat list of numbers as an array of `spec.dtype`; None when count or range are wrong. Takes booleans for 0, 1.

    Raises TypeError for what is not a flat list of numbers, OverflowError for integers beyond 64 bits.
    """
    code, low, high = NUMBERS[spec.datatype]
    values = array(code, data)
    count = len(values)
    if count != prod(shape):
        return None
    wide = np.frombuffer(values, _WIDE[code])
    if count <= _SMALL:
        fits = min(values) >= low and max(values) <= high
    else:
        fits = wide.min() >= low and wide.max() <= high
    return wide.astype(spec.dtype).reshape(shape) if fits else None


def _parse_flat(data: list[Any], spec: TensorSpec, shape: tuple[int, ...], field: str) -> Array | None:
    try:
        return parse_numbers(data, spec, shape)
    except TypeError:
        floats = spec.datatype in _FLOATS
        wrong = next(value for value in data if type(value) is not int and not (floats and type(value) is float))
        raise BadRequest(f"{field}: expected {spec.datatype} values, got {_kind(wrong)}") from None
    except OverflowError:
        raise BadRequest(f"{field}: a value is out of range for {spec.datatype}") from None


def _flatten(data: list[Any], field: str) -> list[Any]:
    """Nested lists to one flat list, level by level; every element of a level must be a list or none."""
    while data and type(data[0]) is list:
        if set(map(type, data)) != {list}:
            raise BadRequest(f"{field}: expected lists nested to one depth, got lists and values side by side")
        data = list(chain.from_iterable(data))
    return data


def _parse_strings(data: list[Any], shape: tuple[int, ...], field: str) -> Array:
    data = _flatten(data, field)
    wrong = next((value for value in data if type(value) is not str), None)
    if wrong is not None or None in data:
        raise BadRequest(f"{field}: expected strings, got {_kind(wrong)}")
    _check_count(len(data), shape, field)
    values = np.empty(len(data), object)
    values[:] = [value.encode() for value in data]
    return values.reshape(shape)


def _parse_bools(data: list[Any], shape: tuple[int, ...], field: str) -> Array:
    data = _flatten(data, field)
    wrong = next((v for v in data if type(v) is not bool and not (type(v) is int and 0 <= v <= 1)), ...)
    if wrong is not ...:
        raise BadRequest(f"{field}: expected true and false, got {_kind(wrong)}")
    _check_count(len(data), shape, field)
    return np.array(data, np.bool_).reshape(shape)


def _check_count(count: int, shape: tuple[int, ...], field: str) -> None:
    if count != prod(shape):
        raise BadRequest(f"{field}: expected {prod(shape)} values for shape {list(shape)}, got {count}")


def _kind(value: object) -> str:
    """A JSON value in words, short whatever it is."""
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return f"the number {value}"[:40]
    if isinstance(value, str):
        return "a string"
    return {type(None): "null", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)


def to_json(values: Array, name: str) -> Any:
    """An output as something orjson encodes with OPT_SERIALIZE_NUMPY: the array itself, or nested lists of strings.

    float32 stays float32 so that 0.1 is written 0.1. Raises OutputNotJson on NaN, infinities and bytes not UTF-8.
    """
    if values.dtype == object:
        try:
            return _texts(values.tolist())
        except UnicodeDecodeError:
            raise OutputNotJson(f"output {name!r} holds bytes that are not UTF-8: ask for it as binary") from None
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise OutputNotJson(f"output {name!r} holds NaN or infinity, which JSON has not: ask for it as binary")
    return np.ascontiguousarray(values)


def _texts(value: Any) -> Any:
    if isinstance(value, list):
        return [_texts(item) for item in value]
    return value.decode() if isinstance(value, bytes) else str(value)
