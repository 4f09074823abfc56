"""The friendly route: one JSON value, a file or plain text in, and JSON out.

JSON and .npy hold the model's inputs themselves; a file of any other type goes to the model's own `decode`. One row is
answered by one value, several rows by a list. Several files in one upload are several rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from app.api.codecs.base import OFF_LOOP_BYTES, DecodedCall, RequestHeaders, client_inputs
from app.api.codecs.columns import Column, array_columns, check_rows_agree, input_names, json_columns, stacked
from app.api.codecs.present import own_rows, present_rows
from app.api.codecs.uploads import Upload, check_pixels, open_uploads, read_npy
from app.api.http import Limits
from app.contract import Answer, ModelInfo, Served
from app.errors import BadRequest, ModelFailed, StarlingError, TooLarge, UnsupportedMedia

_OFF_LOOP_ROWS = 16  # rows of model code (`present`) from which encoding leaves the event loop


class Friendly:
    """Implements Codec. A model's own `decode` and `present` may take any time, so they run off the event loop."""

    names_class = False
    takes_query = True

    def may_name_class(self, body: bytes) -> bool:
        return False

    def slow_to_decode(self, served: Served, headers: RequestHeaders, body: bytes) -> bool:
        return served.model.decode is not None or len(body) > OFF_LOOP_BYTES

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        content_type = headers.get(b"content-type", b"").decode("latin-1") or None
        return decode_friendly(served, content_type, body, max_pixels=limits.pixels, max_json=limits.json)

    def slow_to_encode(self, served: Served, call: DecodedCall) -> bool:
        return served.model.present is not None and call.rows > _OFF_LOOP_ROWS

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        rows = present_rows(served, own_rows(served.info, answer), call)
        return orjson.dumps(rows, option=orjson.OPT_SERIALIZE_NUMPY), None


def decode_friendly(
    served: Served, content_type: str | None, body: bytes, *, max_pixels: int, max_json: int | None = None
) -> DecodedCall:
    """The call that a friendly body means. The rows of several files follow one another.

    `max_json` bounds the bytes of JSON, of all files together. Raises BadRequest, TooLarge or UnsupportedMedia. An
    exception of the model's `decode` that is no StarlingError becomes a BadRequest with its message. Images and large
    JSON are slow to decode: not for the event loop.
    """
    uploads = open_uploads(content_type, body)
    json_bytes = sum(len(upload.data) for upload in uploads if upload.kind == "json")
    if max_json is not None and json_bytes > max_json:
        where = uploads[0].field if len(uploads) == 1 else "body"
        raise TooLarge(f"{where}: expected at most {max_json} bytes of JSON, got {json_bytes}")
    lengths: dict[str, int] = {}
    files = [_columns(served, upload, lengths, max_pixels) for upload in uploads]
    return stacked(files, lengths)


def _columns(served: Served, upload: Upload, lengths: dict[str, int], max_pixels: int) -> dict[str, Column]:
    """The rows of one file, by input. Variable axes must have the lengths that they have in the files before it."""
    if upload.kind == "json":
        columns = json_columns(served.info, _json_value(upload), upload.field, lengths)
    else:
        columns = array_columns(client_inputs(served.info), _arrays(served, upload, max_pixels), upload.field, lengths)
    check_rows_agree(columns, upload.field)
    return columns


def _json_value(upload: Upload) -> Any:
    try:
        return orjson.loads(upload.data)
    except orjson.JSONDecodeError as exc:
        raise BadRequest(f"{upload.field}: not valid JSON: {exc}") from None


def _arrays(served: Served, upload: Upload, max_pixels: int) -> Mapping[str, Any]:
    """Arrays by input name: that of an .npy file, or what the model's own `decode` returns for another file."""
    info = served.info
    inputs = client_inputs(info)
    if upload.kind == "npy":
        if len(inputs) != 1:
            raise BadRequest(
                f"{upload.field}: an .npy file is one array, but model {info.name} has {input_names(inputs)}"
            )
        return {inputs[0].name: read_npy(upload.data, upload.field)}
    decode = served.model.decode
    if decode is None or upload.kind == "unknown":
        raise UnsupportedMedia(_unsupported(info, upload, decodes=decode is not None))
    check_pixels(upload, max_pixels)
    try:
        arrays = decode(upload.media, upload.data)
    except StarlingError:
        raise
    except Exception as exc:  # the model's code may raise anything; a file that it cannot decode is the client's error
        raise BadRequest(f"{upload.field}: {exc or type(exc).__name__}", cause=exc) from exc
    if not isinstance(arrays, Mapping) or set(arrays) != {spec.name for spec in inputs}:
        raise ModelFailed(f"model {info.name}: its decode did not return one array for each of {input_names(inputs)}")
    return arrays


def _unsupported(info: ModelInfo, upload: Upload, *, decodes: bool) -> str:
    takes = ["application/json"]
    if len(client_inputs(info)) == 1:
        takes.append("application/x-npy")
    if decodes:
        takes.append("what its decoder reads, such as image/png, image/jpeg or text/plain, named by Content-Type")
    came = f"content type {upload.media!r}" if upload.kind == "other" else "a body whose type is not named or known"
    return f"{upload.field}: expected {', '.join(takes)} for model {info.name}, got {came}"
