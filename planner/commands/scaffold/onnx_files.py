"""Finds the files beside an ONNX graph that hold its weights. The graph names them; no library is needed to read it.

A graph is a protobuf: fields of a number and a type, of which those of type 2 have a length and are bytes, or another
message. Only the messages that may hold tensors are entered, by the numbers in onnx.proto.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from app.errors import ConfigError

#: By message: the number of a field -> the message in it.
_FIELDS: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_VARINT, _BYTES, _FIXED = 0, 2, {1: 8, 5: 4}  # types of fields; the bytes of those of fixed length
_LOCATION, _EXTERNAL = 14, 1  # of a tensor: where its values are


def external_files(path: Path) -> list[str]:
    """The files that hold the graph's weights, relative to its folder, each once.

    Raises ConfigError naming the graph if one is outside of the folder, and if the graph cannot be read.
    """
    found: dict[str, None] = {}
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for name in _names(data, 0, len(data), "model"):
                found[name] = None
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path}: expected an ONNX graph: {error}") from None
    for name in found:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or not place.name:
            raise ConfigError(f"{path}: expected its weights in files beside it, got {name!r}")
    return list(found)


def _names(data: mmap.mmap, at: int, end: int, message: str) -> Iterator[str]:
    """The locations of external data in the bytes of a message."""
    external, entries = False, []
    for number, kind, begin, stop in _fields_of(data, at, end):
        inner = _FIELDS[message].get(number)
        if message == "tensor" and (number, kind) == (_LOCATION, _VARINT):
            external = begin == _EXTERNAL
        elif kind == _BYTES and inner == "entry":
            entries.append({n: data[b:s] for n, k, b, s in _fields_of(data, begin, stop) if k == _BYTES})
        elif kind == _BYTES and inner is not None:
            yield from _names(data, begin, stop, inner)
    if external:
        yield from (one[2].decode() for one in entries if one.get(1) == b"location" and 2 in one)


def _fields_of(data: mmap.mmap, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Number, type, begin and end of each field; of a number its value in place of the begin. Raises ValueError."""
    while at < end:
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, kind, value, at
            continue
        length = _FIXED.get(kind)
        if kind == _BYTES:
            length, at = _varint(data, at)
        if length is None or at + length > end:
            raise ValueError("it is cut off, or no protobuf")
        yield number, kind, at, at + length
        at += length


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
