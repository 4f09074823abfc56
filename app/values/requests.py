"""Makes V2 JSON requests from sample rows."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.contract import SampleRow, TensorSpec
from app.values.tensors import check_finite, to_json


def row_values(specs: Sequence[TensorSpec], row: SampleRow) -> dict[str, Any]:
    """The values of each input by name; bytes that are not UTF-8 as `{"b64": ...}`. `specs`: what clients send.

    Raises OutputNotJson for NaN and infinities.
    """
    for spec, array in zip(specs, row.arrays, strict=True):
        check_finite(array, spec.name)
    named = {
        spec.name: [_texts(array.tolist())] if spec.datatype == "BYTES" else to_json(array[None], spec.name)
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


def _texts(value: Any) -> Any:
    """Decode bytes in nested lists; those that are not UTF-8 become `{"b64": ...}`."""
    if isinstance(value, list):
        return [_texts(item) for item in value]
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}
