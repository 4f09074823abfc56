"""TensorFlow Serving's and KServe's V1 predict: the row format in, the row format out. Pure functions.

`{"instances": [...]}` has one element per row: the row itself where the model has one input, an object by input name
where it has several. Strings may come as `{"b64": "..."}`, as TensorFlow Serving has it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from app.api.codecs.friendly import Column, FriendlyCall, joined, json_column, json_rows, named_inputs
from app.contract import Array, Served, TensorSpec
from app.errors import BadRequest


def decode_v1(served: Served, body: object) -> FriendlyCall:
    """The inputs that a parsed V1 body means. `signature_name` is accepted and ignored. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest('body: expected an object with "instances"')
    if "instances" not in body:
        if "inputs" in body:
            raise BadRequest('inputs: the columnar format is not supported; expected "instances", one element per row')
        raise BadRequest('instances: missing; expected {"instances": [...]}, one element per row')
    instances = body["instances"]
    if not isinstance(instances, list) or not instances:
        raise BadRequest("instances: expected a list of at least one row")
    info = served.info
    if len(info.inputs) == 1:
        name = info.inputs[0].name
        by_name = all(isinstance(row, dict) and set(row) == {name} for row in instances)
        columns = {name: [row[name] for row in instances] if by_name else instances}
    else:
        rows = [named_inputs(info, row, f"instances[{i}]") for i, row in enumerate(instances)]
        columns = {spec.name: [row[spec.name] for row in rows] for spec in info.inputs}
    lengths: dict[str, int] = {}
    arrays = {}
    for spec in info.inputs:
        field = "instances" if len(info.inputs) == 1 else f"instances[].{spec.name}"
        arrays[spec.name] = _column(spec, columns[spec.name], field, lengths)
    return joined(arrays, lengths, "instances")


def encode_v1(served: Served, outputs: Sequence[Array]) -> dict[str, Any]:
    """`{"predictions": [...]}`, for orjson with OPT_SERIALIZE_NUMPY. Raises OutputNotJson on NaN and infinities."""
    columns = {spec.name: json_rows(spec, array) for spec, array in zip(served.info.outputs, outputs, strict=True)}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    rows = len(outputs[0])
    return {"predictions": [{name: column[row] for name, column in columns.items()} for row in range(rows)]}


def _column(spec: TensorSpec, rows: list[Any], field: str, lengths: dict[str, int]) -> Column:
    if spec.datatype != "BYTES":
        return json_column(spec, rows, field, lengths, many=True)
    texts, raw = _texts_and_raw(rows, len(spec.shape), field)
    column = json_column(spec, texts, field, lengths, many=True)
    for index, data in raw.items():
        column.array.flat[index] = data
    return column


def _texts_and_raw(rows: list[Any], depth: int, field: str) -> tuple[list[Any], dict[int, bytes]]:
    """The rows with each `{"b64": ...}` emptied, and its bytes by position: row-major, as the array will have them."""
    raw: dict[int, bytes] = {}
    position = 0

    def emptied(value: Any, depth: int) -> Any:
        nonlocal position
        if isinstance(value, list) and depth >= 0:
            return [emptied(item, depth - 1) for item in value]
        position += 1
        if not isinstance(value, dict) or set(value) != {"b64"}:
            return value
        try:
            raw[position - 1] = base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError, TypeError):
            raise BadRequest(f"{field}: b64: expected a base64 string") from None
        return ""

    return [emptied(row, depth - 1) for row in rows], raw
