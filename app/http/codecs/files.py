"""Decodes files: .npy, files for a model's own `decode`, and files as rows of a BYTES input.

JSON may contain files too, as `{"b64": "..."}`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.contract import Served, TensorSpec
from app.errors import BadRequest, ModelFailed, StarlingError, UnsupportedMedia, text_of
from app.http.codecs.base import check_rows
from app.http.codecs.columns import Column, array_columns, check_rows_agree, input_names, json_columns
from app.http.codecs.uploads import FORM, Upload, check_pixels, read_npy, sniffed
from app.values.tensors import from_base64, is_base64, shown


def file_columns(served: Served, upload: Upload) -> dict[str, Column]:
    """The rows of one file (not JSON), by input. Raises BadRequest, TooLarge or UnsupportedMedia."""
    columns = array_columns(served.info.client_inputs, _arrays(served, upload), upload.field)
    check_rows_agree(columns, upload.field)
    return columns


def takes_files(served: Served) -> bool:
    """Whether the model accepts files other than JSON and .npy."""
    return served.model.decode is not None or _takes_bytes(served.info.client_inputs)


def is_plain_json(served: Served, upload: Upload) -> bool:
    """Whether it is JSON that its client calls plain text, as a browser's `fetch` does, for a model without files."""
    return upload.media == "text/plain" and not takes_files(served) and sniffed(upload.data, "", "").kind == "json"


def embedded_files(served: Served, value: Any, field: str) -> list[Upload] | None:
    """The files in a JSON value, one `{"b64": ...}` or a list of them, for a model that decodes files. Each may be the
    value of its first input by name, as in KServe's `{"image": {"b64": ...}}`.

    None if the value is anything else, or if the model has a BYTES input: `{"b64": ...}` is then a value of it. Raises
    BadRequest for a string, which is perhaps a file in base64.
    """
    if served.model.decode is None or any(spec.datatype == "BYTES" for spec in served.info.client_inputs):
        return None
    name = served.info.client_inputs[0].name
    values = value if isinstance(value, list) else [value]
    values = [one[name] if isinstance(one, dict) and one.keys() == {name} else one for one in values]
    if any(isinstance(one, str) for one in values):
        raise BadRequest(f'{field}: expected numbers, or {{"b64": "..."}} for a file in base64, got a string')
    if not values or not all(map(is_base64, values)):
        return None
    named = [f"{field}[{index}]" for index in range(len(values))] if isinstance(value, list) else [field]
    return [sniffed(from_base64(each, at), "", at) for each, at in zip(values, named, strict=True)]


def json_parts(served: Served, value: Any, field: str, *, many: bool = False) -> list[dict[str, Column]]:
    """The rows of a JSON value, by input: one part, or one for each file in it. `many`: see `json_column`.

    Raises BadRequest, and for files also TooLarge or UnsupportedMedia.
    """
    if many:
        check_rows(served.info, len(value))
    files = embedded_files(served, value, field)
    if files is None:
        columns = json_columns(served.info, value, field, many=many)
        check_rows_agree(columns, field)
        return [columns]
    check_rows(served.info, len(files))
    parts = [file_columns(served, file) for file in files]
    if not isinstance(value, list):
        return parts
    return [{name: replace(column, single=False) for name, column in part.items()} for part in parts]


def _arrays(served: Served, upload: Upload) -> Mapping[str, Any]:
    """Arrays by input name: from an .npy file, from the model's own `decode`, or the file's bytes."""
    info = served.info
    inputs = info.client_inputs
    if upload.kind == "npy":
        if len(inputs) != 1:
            raise BadRequest(
                f"{upload.field}: an .npy file is one array, but model {info.name} has {input_names(inputs)}"
            )
        return {inputs[0].name: read_npy(upload.data, upload.field)}
    decode = served.model.decode
    if not takes_files(served):
        raise UnsupportedMedia(
            f"{upload.field}: expected application/json, or application/x-npy of an only input, for model {info.name}, "
            f"which decodes no files, got {f'content type {shown(upload.media)}' if upload.data else 'nothing'}"
        )
    check_pixels(upload)
    if decode is None:
        start = upload.data[:64].decode("latin-1")  # no name of a field is longer
        if upload.media == FORM and "=" in start and start.isprintable() and start.partition("=")[0].isidentifier():
            raise UnsupportedMedia(f"{upload.field}: expected JSON, a file or text/plain, got a form")
        return {inputs[0].name: np.array(upload.data, object).reshape((1,) * len(inputs[0].shape))}
    try:
        with_fields = {"fields": upload.fields} if served.model.takes_fields else {}
        arrays = decode(upload.media, upload.data, **with_fields)
    except StarlingError:
        raise
    except BaseException as exc:  # the model's code may raise anything; an undecodable file is the client's fault
        raise BadRequest(f"{upload.field}: {text_of(exc)}", cause=exc) from exc
    if not isinstance(arrays, Mapping) or set(arrays) != {spec.name for spec in inputs}:
        raise ModelFailed(f"model {info.name}: its decode did not return one array for each of {input_names(inputs)}")
    return arrays


def _takes_bytes(inputs: Sequence[TensorSpec]) -> bool:
    """Whether there is one input, of which one BYTES element is a row."""
    return len(inputs) == 1 and inputs[0].datatype == "BYTES" and {1, -1}.issuperset(inputs[0].shape)
