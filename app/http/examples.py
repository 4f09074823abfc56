"""Example request bodies, made from the row that the model was tried with when it was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from app.contract import Array, ModelInfo, Served, TensorSpec, axis_bounds
from app.errors import OutputNotJson
from app.values.tensors import row_values, v2_request, v2_tensor

#: Most values of a row, or bytes of its texts and files, that an example shows.
READABLE = 4096
_SHORT = 8  # length of variable axes in a made-up row
_TEXT = "text"


def in_json(info: ModelInfo) -> bool:
    """Whether a client can send all inputs as JSON: BF16 travels as binary only."""
    return all(spec.datatype != "BF16" for spec in info.client_inputs)


def example_values(served: Served) -> dict[str, Any] | None:
    """One row, as JSON values by input name.

    None if there is no such row or JSON cannot show it: binary inputs, more than READABLE values, NaN.
    """
    row = served.example
    if row is None or not in_json(served.info) or sum(map(_size, row.arrays)) > READABLE:
        return None
    try:
        return row_values(served.info.client_inputs, row)
    except OutputNotJson:
        return None


def _size(array: Array) -> int:
    return sum(map(len, array.reshape(-1))) if array.dtype == object else array.size


def v1_example(values: dict[str, Any], rows: int = 1) -> dict[str, Any]:
    return {"instances": [_element(values)] * rows}


def friendly_example(values: dict[str, Any], rows: int = 0) -> Any:
    """One row, or a list of `rows` equal rows; with several inputs, an object by input name."""
    if rows:
        values = {name: [value] * rows for name, value in values.items()}
    return _element(values)


def _element(values: dict[str, Any]) -> Any:
    return next(iter(values.values())) if len(values) == 1 else values


def form_body(served: Served) -> dict[str, Any]:
    """A V2 body of one row, to start from in the form of the live page.

    Without an example it repeats one plain value. If there are too many values, `data` is `{"fill": value}`.
    """
    values, row, specs = example_values(served), served.example, served.info.client_inputs
    if values is not None and row is not None:
        return v2_request(specs, row, values)
    short = {axis: min(bound or _SHORT, _SHORT) for axis, bound in axis_bounds(specs).items()}
    shapes = [spec.row_shape(short) for spec in specs] if row is None else [array.shape for array in row.arrays]
    return {"inputs": [_plain(spec, shape) for spec, shape in zip(specs, shapes, strict=True)]}


def _plain(spec: TensorSpec, shape: Sequence[int]) -> dict[str, Any]:
    value: Any = _TEXT if spec.datatype == "BYTES" else spec.example
    value = bool(value) if spec.datatype == "BOOL" else value
    if prod(shape) > READABLE:
        return v2_tensor(spec, (1, *shape), {"fill": value})
    data = value
    for length in reversed(shape):
        data = [data] * length
    return v2_tensor(spec, (1, *shape), [data])
