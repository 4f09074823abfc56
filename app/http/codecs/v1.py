"""V1, the predict route of TensorFlow Serving and KServe, in the row format.

`{"instances": [...]}` has one element per row: the row itself if the model has one input, else an object by input name.
As in TensorFlow Serving, strings may be `{"b64": "..."}`; so may files, for a model with a `decode`. `parameters` are
those of a model that takes some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.contract import Answer, Served
from app.errors import BadRequest
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import OFF_LOOP_BYTES, Codec, DecodedCall
from app.http.codecs.columns import by_name, check_rows_agree, json_column, record_columns, stacked
from app.http.codecs.files import decode_files, embedded_files
from app.http.codecs.present import Rows, json_rows, json_text, own_rows, present_rows
from app.http.codecs.v2_decode import load_json, too_much_json
from app.values.tensors import has_bools


class V1(Codec):
    """Decodes `instances`, encodes `predictions`."""

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > OFF_LOOP_BYTES or (served.model.decode is not None and b'"b64"' in body)

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        if len(body) > limits.json:
            raise too_much_json("body", limits.json, len(body), served.info)
        value = load_json(body)
        call = decode_v1(served, value, has_bools(body))
        call.parameters = value.get("parameters") or None
        if not isinstance(call.parameters, dict | None):
            raise BadRequest("parameters: expected an object")
        return call

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        outputs = own_rows(served, call, answer)
        if served.model.front is not None and served.model.present is not None:
            predictions = {"predictions": present_rows(served, outputs, call)}
        else:
            predictions = encode_v1(served, outputs)
        return json_text(predictions, served.info.name), None


def decode_v1(served: Served, body: object, bools: bool = True) -> DecodedCall:
    """Decode a parsed V1 body. `bools`: its text may contain booleans. `signature_name` is ignored.

    Raises BadRequest, and for files also TooLarge or UnsupportedMedia.
    """
    if not isinstance(body, dict):
        raise BadRequest('body: expected an object with "instances"')
    if "instances" not in body:
        if "inputs" in body:
            raise BadRequest('inputs: the columnar format is not supported; expected "instances", one element per row')
        raise BadRequest('instances: missing; expected {"instances": [...]}, one element per row')
    instances = body["instances"]
    if not isinstance(instances, list) or not instances:
        raise BadRequest("instances: expected a list of at least one row")
    files = embedded_files(served, instances, "instances")
    if files is not None:
        return decode_files(served, files)
    inputs = served.info.client_inputs
    if len(inputs) > 1 or any(by_name(row, inputs[0]) for row in instances):
        arrays = record_columns(served.info, instances, "instances", bools)
    else:
        arrays = {inputs[0].name: json_column(inputs[0], instances, "instances", many=True, bools=bools)}
    check_rows_agree(arrays, "instances")
    return stacked(inputs, [arrays], "instances")


def encode_v1(served: Served, outputs: Sequence[Rows]) -> dict[str, Any]:
    """`{"predictions": [...]}`, for `json_text`. `outputs` as `own_rows` has them."""
    columns = {spec.name: json_rows(spec, array) for spec, array in zip(served.info.outputs, outputs, strict=True)}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    rows = len(outputs[0])
    return {"predictions": [{name: column[row] for name, column in columns.items()} for row in range(rows)]}
