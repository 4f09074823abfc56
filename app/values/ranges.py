"""Checks values against the range and the categories of an input."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.contract import Array, TensorSpec
from app.errors import BadRequest

_MOST_SHOWN, _LONGEST_SHOWN = 20, 60  # categories that a message lists, and characters of one


def check_range(spec: TensorSpec, values: Array | memoryview) -> None:
    """Raise BadRequest that names the input if a value is out of range, or not one of the categories.

    GPU kernels do not check indices: one that is out of range crashes the device, and all calls on it fail.
    """
    array = np.frombuffer(values, spec.dtype) if isinstance(values, memoryview) else values
    if spec.categories:
        _check_categories(spec, array)
    if array.size == 0 or (spec.minimum is None and spec.maximum is None):
        return
    least, most = int(array.min()), int(array.max())
    low, high = spec.minimum, spec.maximum
    below, above = low is not None and least < low, high is not None and most > high
    if below or above:
        if low is None:
            expected = f"of at most {high}"
        elif high is None:
            expected = f"of at least {low}"
        else:
            expected = f"from {low} to {high}"
        raise BadRequest(f"input {spec.name!r}: expected values {expected}, got {least if below else most}")


def _check_categories(spec: TensorSpec, array: Array) -> None:
    known = set(np.array(spec.categories, spec.dtype).tolist())
    for value in set(array.reshape(-1).tolist()) - known:
        if value is None:  # padding of a shorter row
            continue
        if spec.missing and (value == b"" or value != value):  # NaN equals nothing
            continue
        texts = [_shown(one) for one in spec.categories[:_MOST_SHOWN]]
        more = f" and {len(known) - _MOST_SHOWN} more" if len(known) > _MOST_SHOWN else ""
        raise BadRequest(f"input {spec.name!r}: expected one of {', '.join(texts)}{more}, got {_shown(value)}")


def _shown(value: Any) -> str:
    text = repr(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    return text if len(text) <= _LONGEST_SHOWN else text[:_LONGEST_SHOWN] + "..."
