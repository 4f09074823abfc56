"""Text between us and other libraries: BYTES are numpy object arrays of `bytes` here, and of `str` there."""

from __future__ import annotations

from typing import Any

import numpy as np

from app.contract import Array


def as_text(values: Array) -> Array:
    """An object array of `bytes` as one of `str`; what is no UTF-8 becomes U+FFFD."""
    texts = [value.decode("utf-8", "replace") for value in values.reshape(-1)]
    return np.array(texts, dtype=object).reshape(values.shape)


def as_bytes(values: Any) -> Any:
    """An array of text as an object array of `bytes`; other arrays as they are."""
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "OU":
        return values
    encoded = [str(value).encode() for value in values.reshape(-1)]
    return np.array(encoded, dtype=object).reshape(values.shape)
