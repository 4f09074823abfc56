"""Finds the files beside an ONNX graph that hold its weights. The graph names them; no library is needed to read it."""

from __future__ import annotations

import mmap
import re
from pathlib import Path, PurePosixPath

from app.errors import ConfigError

#: In the bytes of a graph, a protobuf: the key of an entry, which a tensor has in its field 13, as metadata have theirs
#: in others. Its length is before it; its value follows, with its length.
_LOCATION = re.compile(rb"j(?:[\x00-\x7f]|[\x80-\xff][\x00-\x7f])\n\x08location\x12")
_MORE = 0x80  # of a length's first byte: there is a second


def external_files(path: Path) -> list[str]:
    """The files that hold the graph's weights, relative to its folder, each once.

    Raises ConfigError naming the graph if one is outside of the folder, and if the graph cannot be read.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            ends = [key.end() for key in _LOCATION.finditer(data)]
            found = dict.fromkeys(_value(data, end).decode() for end in ends)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path}: expected an ONNX graph: {error}") from None
    for name in found:
        place = PurePosixPath(name)
        if place.is_absolute() or ".." in place.parts or not place.name:
            raise ConfigError(f"{path}: expected its weights in files beside it, got {name!r}")
    return list(found)


def _value(data: mmap.mmap, at: int) -> bytes:
    length, begin = data[at], at + 1
    if length >= _MORE:
        length, begin = length - _MORE + (data[begin] << 7), begin + 1
    return data[begin : begin + length]
