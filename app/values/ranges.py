"""Checks values against the range of an input."""

from __future__ import annotations

import numpy as np

from app.contract import Array, TensorSpec
from app.errors import BadRequest


def check_range(spec: TensorSpec, values: Array | memoryview) -> None:
    """Raise BadRequest that names the input if a value is out of range.

    GPU kernels do not check indices: one that is out of range crashes the device, and all calls on it fail.
    """
    array = np.frombuffer(values, spec.dtype) if isinstance(values, memoryview) else values
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
