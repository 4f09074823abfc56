"""The protocols of rows: V1, the predict route of TensorFlow Serving and KServe, and the friendly route.

V1's `{"instances": [...]}` has one element per row: the row itself if the model has one input, else an object by input
name. Strings may be `{"b64": "..."}`; so may files, for a model with a `decode`.

The friendly route takes one JSON value, files or plain text, and answers with one value for a row, a list for several.
JSON and .npy contain the model's inputs; any other file is for the model's own `decode`, or a row of its BYTES input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import orjson

from app.contract import QUICK_VALUES, Answer, Array, ModelInfo, Served, TensorSpec
from app.errors import BadRequest, ModelFailed, StarlingError, text_of
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import Codec, DecodedCall
from app.http.codecs.columns import Column, stacked
from app.http.codecs.files import file_columns, is_plain_json, json_parts
from app.http.codecs.uploads import Upload, open_uploads
from app.http.codecs.v2_decode import load_json, parameters_of, too_much_json
from app.values.tensors import shown, to_json, written

#: An output of all rows: an array [rows, ...], or a list of arrays where rows differ in length.
Rows = Array | list[Array]
_PLAIN = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME


class V1(Codec):
    """Decodes `instances`, encodes `predictions`."""

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        if len(body) > limits.json:
            raise too_much_json("body", limits.json, len(body), served.info)
        value = load_json(body)
        parts = json_parts(served, _instances(value), "instances", many=True)
        call = stacked(served.info, parts, "instances")
        call.parameters = parameters_of(value, value.get("parameters"), "parameters") or None
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
    instances = body.get("instances")
    if not isinstance(instances, list) or not instances:
        raise BadRequest(f'instances: expected {{"instances": [...]}}, one element per row, got {shown(instances)}')
    return instances


class Friendly(Codec):
    """A model's own `decode` and `present` may take any time, so helper threads run them."""

    presents = True

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        """The rows of several files are in the order of the files. `limits.json` bounds the JSON of all together.

        Raises BadRequest, TooLarge or UnsupportedMedia. An exception of the model's `decode` that is not a
        StarlingError becomes a BadRequest with its message.
        """
        uploads = open_uploads(headers.get(b"content-type", b"").decode("latin-1"), body)
        _check_fields(served, uploads)
        field = uploads[0].field if len(uploads) == 1 else "body"
        parts: list[dict[str, Column]] = []
        parameters, json_bytes = None, 0
        takes_own = any(spec.name == "parameters" for spec in served.info.client_inputs)
        for upload in uploads:
            if upload.kind == "json" or is_plain_json(served, upload):
                json_bytes += len(upload.data)
                if json_bytes > limits.json:
                    raise too_much_json(field, limits.json, json_bytes, served.info)
                value = load_json(upload.data, upload.field)
                if len(uploads) == 1 and isinstance(value, dict) and not takes_own:
                    parameters = parameters_of(value, value.pop("parameters", None), "parameters") or None
                parts += json_parts(served, value, upload.field)
            else:
                parts.append(file_columns(served, upload))
        call = stacked(served.info, parts, field)
        call.parameters = parameters
        return call

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        rows = present_rows(served, own_rows(served, call, answer), call)
        return json_text(rows, served.info.name), None


def _check_fields(served: Served, uploads: list[Upload]) -> None:
    """Raise BadRequest if the form has fields and nothing would read them."""
    read = served.model.takes_fields and all(upload.kind not in ("json", "npy") for upload in uploads)
    for name in () if read else uploads[0].fields:
        raise BadRequest(f"part {name!r}: expected files alone, since no decode of model {served.info.name} reads it")


# outputs as rows, with labels for scores, or by the model's own `present`


def own_rows(served: Served, call: DecodedCall, answer: Answer) -> list[Rows]:
    """The outputs, with each row cut to its own lengths: those of its inputs, and the steps that it ran."""
    own = dict((served.model.front is None and call.own_lengths) or {})
    if answer.lengths is not None and len(answer.lengths) > 1:
        own |= dict.fromkeys(served.info.own_axes, answer.lengths)
    return [_cut(spec, values, own) for spec, values in zip(served.info.outputs, answer.outputs, strict=True)]


def _cut(spec: TensorSpec, values: Array, own: Mapping[str, Sequence[int]]) -> Rows:
    if own.keys().isdisjoint(spec.axes):
        return values
    return [
        row[tuple(slice(own[axis][place] if axis in own else None) for axis in spec.axes)]
        for place, row in enumerate(values)
    ]


def present_rows(served: Served, outputs: Sequence[Rows], call: DecodedCall) -> Any:
    """The answer for `json_text`: one value, or a list with one per row.

    `outputs` as `own_rows` has them. Raises ModelFailed if the model's `present` raises.
    """
    info, front = served.info, served.model.front
    present = served.model.present if front is None else front.answers.presenter(call.note)
    if present is None:
        columns = [(spec, json_rows(spec, array)) for spec, array in zip(info.outputs, outputs, strict=True)]
        rows = [{spec.name: _labelled(spec, column[row]) for spec, column in columns} for row in range(call.rows)]
    else:
        rows = []
        for row in range(call.rows):
            named = {spec.name: array[row] for spec, array in zip(info.outputs, outputs, strict=True)}
            try:
                rows.append(present(named))
            except StarlingError:
                raise
            except BaseException as exc:  # the model's code may raise anything
                raise ModelFailed(f"model {info.name}: its present failed: {text_of(exc)}", cause=exc) from exc
    return rows[0] if call.single else rows


def plain_rows(info: ModelInfo, outputs: Sequence[Rows]) -> Any:
    """The rows for `json_text`: the values of the only output, or an object by output name for each row."""
    columns = {spec.name: json_rows(spec, array) for spec, array in zip(info.outputs, outputs, strict=True)}
    if len(columns) == 1:
        (column,) = columns.values()
        return _sliced(column) if isinstance(column, np.ndarray) else [*map(_sliced, column)]
    return [{name: _sliced(column[row]) for name, column in columns.items()} for row in range(len(outputs[0]))]


def _sliced(value: Any) -> Any:
    """A value for `json_text`. A large array is its JSON already."""
    large = isinstance(value, np.ndarray) and value.size > QUICK_VALUES
    return orjson.Fragment(written(value)) if large else value


def json_text(value: Any, model: str) -> bytes:
    """A value as JSON. It may contain arrays, and anything that a model's `present` returned.

    NaN and infinities become null. Raises ModelFailed for what JSON does not have.
    """
    try:
        return orjson.dumps(value, option=_PLAIN)
    except TypeError:  # bytes, which `_plain` decodes, or a type that JSON does not have
        pass
    try:
        return orjson.dumps(_plain(value, model, "answer"), option=_PLAIN)
    except (TypeError, RecursionError) as error:  # half of a surrogate pair, an integer above 64 bits, a cycle
        raise ModelFailed(f"model {model}: its present returned what is no JSON: {error}") from None


def json_rows(spec: TensorSpec, array: Rows) -> Any:
    """The rows of an output, see `to_json`. BF16 becomes FP32."""
    if isinstance(array, list):
        return [json_rows(spec, row) for row in array]
    if spec.datatype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return to_json(array, spec.name)


def _labelled(spec: TensorSpec, value: Any) -> Any:
    """A vector of scores of an output with labels, as an object with the label of the highest; null if that is NaN."""
    if not spec.labels or np.shape(value) != (len(spec.labels),) or spec.datatype == "BYTES":
        return _sliced(value)
    best = int(np.argmax(value))  # NaN counts as the highest
    return {"label": None if np.isnan(value[best]) else spec.labels[best], "scores": value}


def _plain(value: Any, model: str, path: str) -> Any:
    """Convert a value to types that orjson writes. Raises as `json_text`."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), model, path) if value.dtype.kind in "OUSc" else to_json(value, path)
    if isinstance(value, float | np.floating):
        return value  # float32 is kept, so that 0.1 is written as 0.1
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
    if isinstance(value, Mapping):
        return {str(key): _plain(item, model, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, model, f"{path}[{i}]") for i, item in enumerate(value)]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ModelFailed(f"model {model}: its present returned a {type(value).__name__} at {path}, which JSON has not")
