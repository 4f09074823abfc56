"""A V2 request body to try a model with, made of its own sample row or of plain values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from app.contract import UNBOUNDED, Array, Served, TensorSpec

LONGEST = 4096  # values that are written out; of a larger input the page makes the values when it sends
_SHORT = 8  # of variable axes
_TEXT = "text"


def example_of(served: Served) -> dict[str, Any]:
    """One row in every input that clients send. Where there are too many values, `data` is `{"fill": value}`."""
    model, specs = served.model, served.info.client_inputs
    if model.samples and model.info is served.info:  # else clients send something else than the model takes
        arrays = model.samples[0].arrays
        parameters = dict(model.samples[0].parameters)
    else:
        arrays, parameters = tuple(map(_plain, specs)), {}
    body: dict[str, Any] = {"inputs": [_tensor(spec, array) for spec, array in zip(specs, arrays, strict=True)]}
    if parameters:
        body["parameters"] = parameters
    return body


def _plain(spec: TensorSpec) -> Array:
    """The input's example in all places; variable axes are short."""
    bounds = zip(spec.axes, spec.bounds, strict=True)
    shape = tuple(bound if not axis else _SHORT if bound == UNBOUNDED else min(bound, _SHORT) for axis, bound in bounds)
    if math.prod(shape) > LONGEST:  # a view of one value: large inputs are not made
        return np.broadcast_to(_value(spec), shape)
    return np.full(shape, _value(spec), spec.dtype)


def _value(spec: TensorSpec) -> Array:
    if spec.datatype == "BYTES":
        return np.array(_TEXT.encode(), object)
    if spec.datatype == "BF16":  # the upper half of a float32
        return (np.array(spec.example, np.float32).view(np.uint32) >> 16).astype(spec.dtype)
    return np.array(spec.example, spec.dtype)


def _tensor(spec: TensorSpec, array: Array) -> dict[str, Any]:
    tensor: dict[str, Any] = {"name": spec.name, "shape": [1, *array.shape], "datatype": spec.datatype}
    if array.size > LONGEST:
        tensor["data"] = {"fill": _plainly(spec, array[(0,) * array.ndim])}
    else:
        tensor["data"] = [_nested(spec, array)]
    return tensor


def _nested(spec: TensorSpec, array: Array) -> Any:
    """All values, nested as the array is."""
    values = np.empty(array.size, object)
    values[:] = [_plainly(spec, value) for value in array.reshape(-1)]
    return values.reshape(array.shape).tolist()


def _plainly(spec: TensorSpec, value: Any) -> Any:
    """One value as JSON has it; floats with no more digits than their type needs."""
    if spec.datatype == "BYTES":
        return bytes(value).decode("utf-8", "replace")
    if spec.datatype == "BF16":
        return round(float((np.uint32(value) << np.uint32(16)).view(np.float32)), 3)
    if np.issubdtype(spec.dtype, np.floating):
        number = float(str(value))
        return number if math.isfinite(number) else 0.0
    return value.item()
