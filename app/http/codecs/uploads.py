"""Bodies that are files: detecting their kind, reading multipart uploads, and checking .npy and image headers.

Pure functions of bytes. Sizes in a header are checked against the actual bytes, or a limit, before anything is
allocated.
"""

from __future__ import annotations

import io
import mimetypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy_format
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import Field, File, FormParser, parse_options_header

from app.contract import MAX_PIXELS, Array
from app.errors import BadRequest, text_of
from app.values.image_files import opened_image

Kind = Literal["json", "npy", "other", "unknown"]

_NPY = frozenset({"application/x-npy", "application/npy", "application/x-numpy", "application/numpy"})
FORM = "application/x-www-form-urlencoded"
#: Content types that say nothing about a body. `curl --data-binary` sends the form type by default.
_UNSPECIFIC = frozenset({"", "application/octet-stream", "binary/octet-stream", FORM, "*/*"})
_JSON_STARTS = (*(bytes([start]) for start in b'[{"-0123456789'), b"true", b"false", b"null")
_MAX_PARTS = 64  # of one upload: parsing many small parts would take seconds
_LONGEST_TYPE = 1024  # characters of a content type with a boundary: 64 KiB of parameters take 20 ms
_LONGEST_NAME, _LONGEST_REASON = 60, 200  # characters of a part's name, and of numpy's reason, in a message


@dataclass(frozen=True, slots=True)
class Upload:
    """One file. `media`: its content type in lower case, without parameters. `field`: its name in messages.

    `fields`: the other form fields of its upload, by name.
    """

    kind: Kind
    media: str
    data: bytes
    field: str
    fields: Mapping[str, str] = dataclass_field(default_factory=dict)


def open_uploads(content_type: str, body: bytes) -> list[Upload]:
    """The body itself, or the files in a multipart body, in order.

    If the content type says nothing about a file, its first bytes decide. Raises BadRequest if a multipart body is
    malformed or has no file.
    """
    media = _media_type(content_type)
    if media != "multipart/form-data":
        return [_classified(media, body, "body", "")]
    parts = _parts(content_type, body)
    files = [part for part in parts if isinstance(part, File)]
    fields = _fields(part for part in parts if isinstance(part, Field))
    uploads = []
    for number, file in enumerate(files, 1):
        which = f" (file {number} of {len(files)})" if len(files) > 1 else ""
        field = f"part {_text(file.field_name)[:_LONGEST_NAME]!r}{which}"
        file.file_object.seek(0)
        data, path = file.file_object.read(), _text(file.file_name)
        uploads.append(replace(_classified(_media_type(file.content_type), data, field, path), fields=fields))
    return uploads


def _fields(parts: Iterable[Field]) -> dict[str, str]:
    """The form's fields. Raises BadRequest if one is repeated or is not UTF-8."""
    fields: dict[str, str] = {}
    for part in parts:
        name = _text(part.field_name)[:_LONGEST_NAME]
        if name in fields:
            raise BadRequest(f"part {name!r}: expected one field of that name, got several")
        try:
            fields[name] = (part.value or b"").decode()
        except UnicodeDecodeError:
            raise BadRequest(f"part {name!r}: expected a file name, or a field of UTF-8 text") from None
    return fields


def _media_type(content_type: str | None) -> str:
    return (content_type or "").partition(";")[0].strip().lower()


def _classified(media: str, data: bytes, field: str, path: str) -> Upload:
    if media in _UNSPECIFIC:
        found = sniffed(data, media, field)
        named = mimetypes.guess_type(path)[0] if found.kind == "unknown" else None
        return found if named is None else _classified(named, data, field, "")
    if media in ("application/json", "text/json") or media.endswith("+json"):
        return Upload("json", media, data, field)
    return Upload("npy" if media in _NPY else "other", media, data, field)


def sniffed(data: bytes, media: str, field: str) -> Upload:
    """The file, with its kind from its first bytes; if they say nothing, of the content type `media`."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return Upload("other", "image/png", data, field)
    if data.startswith(b"\xff\xd8\xff"):
        return Upload("other", "image/jpeg", data, field)
    if data.startswith(b"\x93NUMPY"):
        return Upload("npy", "application/x-npy", data, field)
    start = data[:64].lstrip(b" \t\r\n")
    if start.startswith(_JSON_STARTS):
        return Upload("json", "application/json", data, field)
    return Upload("unknown", media, data, field)


def _parts(content_type: str, body: bytes) -> list[File | Field]:
    """The parts of a multipart/form-data body in order. Those with a file name are a File; at least one must be."""
    if len(content_type) > _LONGEST_TYPE:
        raise BadRequest(f"Content-Type: expected at most {_LONGEST_TYPE} characters, got {len(content_type)}")
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise BadRequest("Content-Type: multipart/form-data needs a boundary")
    parts: list[File | Field] = []
    ended: list[bool] = []

    def add(part: File | Field) -> None:
        if len(parts) == _MAX_PARTS:
            raise BadRequest(f"body: expected at most {_MAX_PARTS} parts in a multipart/form-data upload")
        parts.append(part)

    in_memory = {"MAX_MEMORY_FILE_SIZE": len(body)}  # otherwise large files would be written to disk
    parser: FormParser | None = None
    try:
        parser = FormParser("multipart/form-data", add, add, lambda: ended.append(True), boundary, config=in_memory)
        _take_extended_names(parser.parser)
        parser.write(body)
        parser.finalize()
    except FormParserError as exc:
        raise BadRequest(f"body: malformed multipart/form-data: {exc}") from None
    finally:
        if parser is not None:
            parser.parser = None  # they refer to each other: a cycle, which would keep the files
    if not ended:
        raise BadRequest("body: the multipart/form-data upload ends before its closing boundary")
    if not any(isinstance(part, File) for part in parts):
        raise BadRequest("body: expected a multipart/form-data upload with a file part, as curl -F file=@NAME sends")
    return parts


def _take_extended_names(parser: Any) -> None:
    """Have the parser take `filename*=`, in which urllib3 1.x sends names that are not ASCII: RFC 7578 forbids it, and
    the parser would take such a file for a field."""
    take = parser.callbacks["on_header_value"]

    def take_value(data: bytes, start: int, end: int) -> None:
        value = data[start:end].replace(b"filename*=", b"filename=")
        take(value, 0, len(value))

    parser.set_callback("header_value", take_value)


def _text(name: bytes | None) -> str:
    return (name or b"").decode("utf-8", "replace")


def read_npy(data: bytes, field: str) -> Array:
    """The array of an .npy file, without copying it; read-only. Pickled objects are never read.

    Raises BadRequest if the header is malformed, or if not exactly the bytes that it declares follow.
    """
    stream = io.BytesIO(data)
    try:
        version = npy_format.read_magic(stream)
        if version not in ((1, 0), (2, 0)):
            raise BadRequest(f"{field}: expected .npy format 1.0 or 2.0, got {version[0]}.{version[1]}")
        read = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except BadRequest:
        raise
    except Exception as exc:  # numpy evaluates the header as Python, so a hostile one may raise anything
        raise BadRequest(f"{field}: not a valid .npy file: {text_of(exc).splitlines()[0][:_LONGEST_REASON]}") from None
    if dtype.hasobject or dtype.kind not in "biufSU" or not dtype.itemsize:
        raise BadRequest(f"{field}: expected an .npy array of numbers, booleans or strings, got dtype {dtype}")
    offset = stream.tell()
    if any(type(length) is not int or length < 0 for length in shape):
        raise BadRequest(f"{field}: expected a shape of integers of at least 0 in the .npy header")
    expected = prod(shape) * dtype.itemsize
    if expected != len(data) - offset:
        raise BadRequest(
            f"{field}: the .npy header says {expected} bytes ({dtype} of shape {list(shape)}), got {len(data) - offset}"
        )
    return np.frombuffer(data, dtype, offset=offset).reshape(shape, order="F" if fortran else "C")


def check_pixels(upload: Upload) -> None:
    """Check the size in an image's header before the image is decoded.

    Files of other content types are checked too, because a decoder may open any file as an image; one that is not an
    image passes. Raises TooLarge, or BadRequest if the content type is an image but the header is unreadable.
    """
    try:
        with opened_image(upload.data, MAX_PIXELS, what=upload.field):
            pass
    except BadRequest:
        if upload.media.startswith("image/"):
            raise
