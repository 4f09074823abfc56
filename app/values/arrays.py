"""Casts numpy arrays to the dtype of an input, checks their range, and joins rows of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.contract import Array, TensorSpec
from app.errors import BadRequest


def cast_array(array: Array, spec: TensorSpec, field: str) -> Array:
    """Convert to the spec's dtype. Values may be rounded, never changed otherwise: that raises BadRequest."""
    if spec.datatype == "BYTES":
        return _as_bytes(array, field)
    target, source = spec.dtype, array.dtype
    kinds = {"b": "biuf", "i": "iuf", "u": "iuf", "f": "f"}.get(source.kind, "")
    if target.kind not in kinds or (spec.datatype == "BF16" and source.newbyteorder("<") != target):
        raise BadRequest(f"{field}: expected values that fit {spec.datatype}, got dtype {source}")
    if target.kind in "iu" and source.kind in "iu" and not np.can_cast(source, target, "safe") and array.size:
        limits = np.iinfo(target)
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise BadRequest(f"{field}: a value is out of range for {spec.datatype}")
    with np.errstate(over="ignore"):
        cast = array.astype(target, copy=False)
    if target.kind == "f" and target.itemsize < source.itemsize and np.any(np.isinf(cast) & np.isfinite(array)):
        raise BadRequest(f"{field}: a value is out of range for {spec.datatype}")
    return cast


def check_range(spec: TensorSpec, values: Array | memoryview) -> None:
    """Raise BadRequest that names the input if a value is out of range.

    GPU kernels do not check indices: one that is out of range crashes the device, and all calls on it fail.
    """
    array = np.frombuffer(values, spec.dtype) if isinstance(values, memoryview) else values
    if not spec.ranged or array.size == 0:
        return
    least, most = int(array.min()), int(array.max())
    if spec.minimum is not None and least < spec.minimum:
        raise BadRequest(f"input {spec.name!r}: expected values of at least {spec.minimum}, got {least}")
    if spec.maximum is not None and most > spec.maximum:
        raise BadRequest(f"input {spec.name!r}: expected values of at most {spec.maximum}, got {most}")


def joined_rows(parts: Sequence[Array], padding: Any = 0) -> Array:
    """Arrays [rows, ...] joined into one, padded to the longest along each axis."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if all(part.shape[1:] == first.shape[1:] for part in parts):
        return np.concatenate(parts)
    longest = map(max, zip(*(part.shape[1:] for part in parts), strict=True))
    rows: Array = np.full((sum(map(len, parts)), *longest), padding, first.dtype)
    begin = 0
    for part in parts:
        rows[(slice(begin, begin + len(part)), *map(slice, part.shape[1:]))] = part
        begin += len(part)
    return rows


def _as_bytes(array: Array, field: str) -> Array:
    if not all(isinstance(value, str | bytes) for value in array.flat):
        raise BadRequest(f"{field}: expected strings, got dtype {array.dtype}")
    texts = [value.encode() if isinstance(value, str) else bytes(value) for value in array.flat]
    return np.array(texts, object).reshape(array.shape)
