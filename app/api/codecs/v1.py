"""V1, the predict route of TensorFlow Serving and KServe, in its row format.

`{"instances": [...]}` has one element per row: the row itself if the model has one input, an object by input name if it
has several. Strings may be given as `{"b64": "..."}`, as in TensorFlow Serving.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

import orjson

from app.api.codecs.base import OFF_LOOP_BYTES, DecodedCall, RequestHeaders, client_inputs
from app.api.codecs.columns import Column, check_rows_agree, json_column, named_inputs, stacked
from app.api.codecs.present import Rows, json_rows, own_rows
from app.api.codecs.v2_decode import load_json
from app.api.http import Limits
from app.contract import Answer, Served, TensorSpec
from app.errors import BadRequest, TooLarge


class V1:
    """Implements Codec."""

    names_class = False
    takes_query = True

    def may_name_class(self, body: bytes) -> bool:
        return False

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > OFF_LOOP_BYTES

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        if len(body) > limits.json:
            raise TooLarge(f"body: expected at most {limits.json} bytes of JSON, got {len(body)}")
        return decode_v1(served, load_json(body))

    def slow_to_encode(self, served: Served, call: DecodedCall) -> bool:
        return False

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        return orjson.dumps(encode_v1(served, own_rows(served.info, answer)), option=orjson.OPT_SERIALIZE_NUMPY), None


def decode_v1(served: Served, body: object) -> DecodedCall:
    """The call that a parsed V1 body means. `signature_name` is accepted and ignored. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest('body: expected an object with "instances"')
    if "instances" not in body:
        if "inputs" in body:
            raise BadRequest('inputs: the columnar format is not supported; expected "instances", one element per row')
        raise BadRequest('instances: missing; expected {"instances": [...]}, one element per row')
    instances = body["instances"]
    if not isinstance(instances, list) or not instances:
        raise BadRequest("instances: expected a list of at least one row")
    inputs = client_inputs(served.info)
    if len(inputs) > 1 or any(_by_name(row, inputs[0]) for row in instances):
        rows = [named_inputs(served.info, row, f"instances[{i}]") for i, row in enumerate(instances)]
        columns = {spec.name: [row[spec.name] for row in rows] for spec in inputs}
    else:
        columns = {inputs[0].name: instances}
    lengths: dict[str, int] = {}
    arrays = {}
    for spec in inputs:
        field = "instances" if len(inputs) == 1 else f"instances[].{spec.name}"
        arrays[spec.name] = _column(spec, columns[spec.name], field, lengths)
    check_rows_agree(arrays, "instances")
    return stacked([arrays], lengths)


def encode_v1(served: Served, outputs: Sequence[Rows]) -> dict[str, Any]:
    """`{"predictions": [...]}`, for orjson with OPT_SERIALIZE_NUMPY. `outputs` as `own_rows` has them.

    Raises OutputNotJson for NaN and infinities.
    """
    columns = {spec.name: json_rows(spec, array) for spec, array in zip(served.info.outputs, outputs, strict=True)}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    rows = len(outputs[0])
    return {"predictions": [{name: column[row] for name, column in columns.items()} for row in range(rows)]}


def _by_name(row: object, spec: TensorSpec) -> bool:
    """Whether a row of a model with one input is an object by input name, and not a string as base64."""
    return isinstance(row, dict) and (set(row) != {"b64"} or spec.name == "b64")


def _column(spec: TensorSpec, rows: list[Any], field: str, lengths: dict[str, int]) -> Column:
    if spec.datatype != "BYTES":
        return json_column(spec, rows, field, lengths, many=True)
    texts, raw = _texts_and_raw(rows, len(spec.shape), field)
    column = json_column(spec, texts, field, lengths, many=True)
    for index, data in raw.items():
        column.array.flat[index] = data
    return column


def _texts_and_raw(rows: list[Any], depth: int, field: str) -> tuple[list[Any], dict[int, bytes]]:
    """Replace each `{"b64": ...}` by an empty string, and return its bytes by their row-major position."""
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
