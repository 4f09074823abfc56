"""Arrays to V2 tensors and back: casts that lose nothing but precision, binary and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from starling_client.errors import BadAnswer
from starling_client.types import Array

#: V2 datatype -> what it is in an array here. BF16 is FP32 to the caller, and its upper half on the wire.
DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype("<f4"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(object),
}


def to_array(name: str, datatype: str, values: npt.ArrayLike) -> Array:
    """What a caller gave for an input, as an array of its datatype.

    Integers become any type that holds their values, and floats; floats become other floats. BYTES are str, as UTF-8,
    or bytes. Raises ValueError that names the input for all else: 1.5 for an integer, 300 for a UINT8, a ragged list.
    """
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise ValueError(f"input {name!r}: datatype {datatype} is not known to this client")
    try:
        array = np.asarray(values, object) if datatype == "BYTES" else np.asarray(values)
    except ValueError as exc:
        raise ValueError(f"input {name!r}: {exc}") from None
    if datatype == "BYTES":
        return _texts(name, array)
    return array if array.dtype == dtype else _cast(name, datatype, array, dtype)


def _texts(name: str, array: Array) -> Array:
    found = np.empty(array.size, object)
    for index, value in enumerate(array.ravel()):
        raw = value.encode() if isinstance(value, str) else value
        if not isinstance(raw, bytes | bytearray | memoryview):
            raise ValueError(f"input {name!r}: expected str or bytes, got {type(value).__name__}")  # noqa: TRY004
        found[index] = bytes(raw)
    return found.reshape(array.shape)


def _cast(name: str, datatype: str, array: Array, dtype: np.dtype[Any]) -> Array:
    allowed = {"b": "b", "i": "iub", "u": "iub", "f": "fiub"}[dtype.kind]
    if array.dtype.kind not in allowed:
        raise ValueError(f"input {name!r}: expected {datatype}, got values of {array.dtype}")
    if dtype.kind in "iu" and array.size:
        bounds = np.iinfo(dtype)
        for value in (int(array.min()), int(array.max())):
            if not bounds.min <= value <= bounds.max:
                raise ValueError(f"input {name!r}: {value} is no {datatype}")
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise ValueError(f"input {name!r}: a value is too large for {datatype}") from None


def to_bytes(datatype: str, array: Array) -> bytes:
    """The tensor's bytes: little-endian, row-major; BYTES elements each behind their length as uint32."""
    if datatype == "BYTES":
        parts: list[bytes] = []
        for value in array.ravel():
            parts += (len(value).to_bytes(4, "little"), value)
        return b"".join(parts)
    if datatype == "BF16":
        return _bfloat(array).tobytes()
    return array.tobytes()


def _bfloat(array: Array) -> Array:
    """The upper half of each FP32, rounded to the nearest, ties to even, as torch does."""
    bits = np.ascontiguousarray(array).view(np.uint32)
    upper = ((bits + ((bits >> 16) & 1) + np.uint32(0x7FFF)) >> 16).astype("<u2")
    return np.where(np.isnan(array), np.uint16(0x7FC0), upper)


def to_json(name: str, datatype: str, array: Array) -> list[Any]:
    """The tensor's values, flat. Raises ValueError for what JSON cannot hold."""
    if datatype == "BF16":
        raise ValueError(f"input {name!r}: BF16 has no JSON form, and this server takes no binary tensors")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"input {name!r}: JSON has no NaN and no infinities, and this server takes no binary tensors")
    if datatype != "BYTES":
        values: list[Any] = array.ravel().tolist()
        return values
    try:
        return [value.decode() for value in array.ravel()]
    except UnicodeDecodeError:
        raise ValueError(f"input {name!r}: JSON holds UTF-8 only, and this server takes no binary tensors") from None


def from_bytes(name: str, datatype: str, shape: Sequence[int], raw: memoryview) -> Array:
    """An output that came as bytes: an array of its own, which may be written to. Raises BadAnswer."""
    dtype = _dtype(name, datatype)
    if datatype == "BYTES":
        return _split(name, raw, prod(shape)).reshape(shape)
    size = 2 if datatype == "BF16" else dtype.itemsize
    if len(raw) != prod(shape) * size:
        raise BadAnswer(f"output {name!r}: {len(raw)} bytes for shape {list(shape)} of {datatype}")
    if datatype == "BF16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view("<f4").reshape(shape)
    return np.frombuffer(raw, dtype).reshape(shape).copy()


def _split(name: str, raw: memoryview, count: int) -> Array:
    if 4 * count > len(raw):
        raise BadAnswer(f"output {name!r}: {count} BYTES elements in {len(raw)} bytes")
    found = np.empty(count, object)
    start = 0
    for index in range(count):
        end = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        if start + 4 > len(raw) or end > len(raw):
            raise BadAnswer(f"output {name!r}: BYTES element {index} reaches beyond the tensor's {len(raw)} bytes")
        found[index] = bytes(raw[start + 4 : end])
        start = end
    if start != len(raw):
        raise BadAnswer(f"output {name!r}: {len(raw) - start} bytes are left over after {count} BYTES elements")
    return found


def from_json(name: str, datatype: str, shape: Sequence[int], data: object) -> Array:
    """An output that came as JSON, nested or flat. BYTES are bytes here, too. Raises BadAnswer."""
    dtype = _dtype(name, datatype)
    try:
        array = np.array(data, dtype).reshape(shape)
    except (TypeError, ValueError, OverflowError) as exc:
        raise BadAnswer(f"output {name!r}: its data are no {datatype} of shape {list(shape)}: {exc}") from None
    if datatype != "BYTES":
        return array
    try:
        return _texts(name, array)
    except ValueError:
        raise BadAnswer(f"output {name!r}: its data are not all texts") from None


def _dtype(name: str, datatype: str) -> np.dtype[Any]:
    dtype = DTYPES.get(datatype)
    if dtype is None:
        raise BadAnswer(f"output {name!r}: datatype {datatype!r} is not known to this client")
    return dtype
