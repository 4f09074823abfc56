"""V2 requests for a model, made from its metadata."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from loadtest.generator.load import PreparedRequest
from loadtest.generator.payload import Tensor, v2_body
from loadtest.generator.seen_answers import Array, decode

SEED = 7


def values(count: int) -> Array:
    return np.random.default_rng(SEED).standard_normal(count, np.float32)


def v2_json(metadata: dict[str, Any], rows: int = 1) -> PreparedRequest:
    """Rows as JSON, answered as JSON. Numbers have the digits of a double, the longest that a client sends."""
    return _request(metadata, rows, binary=False)


def v2_binary(metadata: dict[str, Any], rows: int = 1) -> PreparedRequest:
    """Rows as raw bytes behind a JSON head, answered the same way."""
    return _request(metadata, rows, binary=True)


def _request(metadata: dict[str, Any], rows: int, *, binary: bool) -> PreparedRequest:
    """For a model with one FP32 input of fixed size."""
    (tensor,) = map(Tensor.parse, metadata["inputs"])
    shape = (rows, *tensor.shape)
    if tensor.datatype != "FP32" or math.prod(shape) < 1:
        raise ValueError(f"expected a fixed FP32 input, got {tensor}")
    given = values(math.prod(shape)).reshape(shape)
    data = given if binary else given.astype(np.float64)
    headers, body = v2_body([(tensor.name, "FP32", shape, data)], {}, binary=binary)
    name = metadata["name"]
    return PreparedRequest(
        f"{name} {'binary' if binary else 'JSON'}", f"/v2/models/{name}/infer", tuple(headers.items()), body
    )  # fmt: skip


def check(request: PreparedRequest, headers: dict[str, str], answer: bytes) -> None:
    """Raise ValueError unless `answer` is one complete output of one row; for `echo` it must equal the input."""
    ((_, output),) = decode(answer, headers.get("inference-header-content-length", "")).values()
    if len(output) != 1:
        raise ValueError(f"{request.name}: shape {list(output.shape)}")
    if request.name.startswith("echo ") and not np.array_equal(output.ravel(), values(output.size)):
        raise ValueError(f"{request.name}: the answer is not the input")
