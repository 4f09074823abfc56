"""The protocols of rows: V1, the predict route of TensorFlow Serving and KServe, and the friendly route.

V1's `{"instances": [...]}` has one element per row: the row itself if the model has one input, else an object by input
name. As in TensorFlow Serving, strings may be `{"b64": "..."}`; so may files, for a model with a `decode`. `parameters`
are those of a model that takes some.

The friendly route takes one JSON value, files or plain text. It answers with one value for one row, with a list for
several. JSON and .npy contain the model's inputs themselves; any other file is passed to the model's own `decode`, or
is a row of its BYTES input.
"""

from __future__ import annotations

from typing import Any

from app.contract import Answer, Served
from app.errors import BadRequest
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import OFF_LOOP_BYTES, Codec, DecodedCall
from app.http.codecs.columns import Column, stacked
from app.http.codecs.files import file_columns, json_parts
from app.http.codecs.present import json_text, own_rows, plain_rows, present_rows
from app.http.codecs.uploads import Upload, open_uploads
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


class Friendly(Codec):
    """A model's own `decode` and `present` may take any time, so helper threads run them."""

    presents = True

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return served.model.decode is not None or len(body) > OFF_LOOP_BYTES

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        """The rows of several files are in the order of the files. `limits.json` bounds the JSON of all together.

        Raises BadRequest, TooLarge or UnsupportedMedia. An exception of the model's `decode` that is not a
        StarlingError becomes a BadRequest with its message.
        """
        uploads = open_uploads(headers.get(b"content-type", b"").decode("latin-1"), body)
        _check_fields(served, uploads)
        field = uploads[0].field if len(uploads) == 1 else "body"
        json_bytes = sum(len(upload.data) for upload in uploads if upload.kind == "json")
        if json_bytes > limits.json:
            raise too_much_json(field, limits.json, json_bytes, served.info)
        parts: list[dict[str, Column]] = []
        for upload in uploads:
            if upload.kind == "json":
                parts += json_parts(served, load_json(upload.data, upload.field), upload.field)
            else:
                parts.append(file_columns(served, upload))
        return stacked(served.info.client_inputs, parts, field)

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        rows = present_rows(served, own_rows(served, call, answer), call)
        return json_text(rows, served.info.name), None


def _check_fields(served: Served, uploads: list[Upload]) -> None:
    """Raise BadRequest if the form has fields and nothing would read them."""
    read = served.model.takes_fields and all(upload.kind not in ("json", "npy") for upload in uploads)
    for name in () if read else uploads[0].fields:
        why = f"the decode of model {served.info.name} takes none"
        if served.model.takes_fields:
            why = "JSON and .npy files are not decoded"
        raise BadRequest(f"part {name!r}: expected files without form fields beside them, since {why}")
