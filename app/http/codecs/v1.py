"""V1, the predict route of TensorFlow Serving and KServe, in the row format.

`{"instances": [...]}` has one element per row: the row itself if the model has one input, else an object by input name.
As in TensorFlow Serving, strings may be `{"b64": "..."}`; so may files, for a model with a `decode`. `parameters` are
those of a model that takes some.
"""

from __future__ import annotations

from typing import Any

from app.contract import Answer, Served
from app.errors import BadRequest
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import OFF_LOOP_BYTES, Codec, DecodedCall
from app.http.codecs.columns import stacked
from app.http.codecs.files import json_parts
from app.http.codecs.present import json_text, own_rows, plain_rows, present_rows
from app.http.codecs.v2_decode import load_json, too_much_json


class V1(Codec):
    """Decodes `instances`, encodes `predictions`."""

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return len(body) > OFF_LOOP_BYTES or (served.model.decode is not None and b'"b64"' in body)

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        if len(body) > limits.json:
            raise too_much_json("body", limits.json, len(body), served.info)
        value = load_json(body)
        parts = json_parts(served, _instances(value), "instances", many=True)
        call = stacked(served.info.client_inputs, parts, "instances")
        call.parameters = value.get("parameters") or None
        if not isinstance(call.parameters, dict | None):
            raise BadRequest("parameters: expected an object")
        return call

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        outputs = own_rows(served, call, answer)
        presents = served.model.front is not None and served.model.present is not None
        rows = present_rows(served, outputs, call) if presents else plain_rows(served.info, outputs)
        return json_text({"predictions": rows}, served.info.name), None


def _instances(body: object) -> list[Any]:
    """The rows in a parsed body. `signature_name` is ignored. Raises BadRequest."""
    if not isinstance(body, dict):
        raise BadRequest('body: expected an object with "instances"')
    if body.get("inputs") is not None:
        raise BadRequest('inputs: the columnar format is not supported; expected "instances", one element per row')
    if "instances" not in body:
        raise BadRequest('instances: missing; expected {"instances": [...]}, one element per row')
    instances = body["instances"]
    if not isinstance(instances, list) or not instances:
        raise BadRequest("instances: expected a list of at least one row")
    return instances
