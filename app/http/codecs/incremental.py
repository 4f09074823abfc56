"""Parses large V2 JSON bodies in parts, so that the event loop runs in between.

A JSON parser holds the interpreter lock until it returns: some 8 ms for 1 MiB of numbers, in which no other request is
answered. Nearly all of a large body is one flat list of numbers, which can be cut at any comma. Any other body, and any
wrong one, is parsed whole.
"""

from __future__ import annotations

import struct

import orjson

from app.contract import ModelInfo, TensorSpec
from app.errors import BadRequest
from app.http.codecs.base import DecodedCall
from app.http.codecs.v2_decode import decode_request, first_data
from app.values.tensors import has_bools, packer

_PIECE = 64 << 10  # bytes of numbers: some 0.4 ms


class IncrementalDecode:
    """Decodes one request: the numbers of its first tensor in parts, then everything else."""

    def __init__(self, text: bytes, start: int, end: int, spec: TensorSpec, info: ModelInfo) -> None:
        self._text, self._at, self._end = text, start, end
        self._rest = text[:start] + text[end:]
        self._spec, self._info = spec, info
        self._packed: list[bytes] = []

    @property
    def unfinished(self) -> bool:
        return self._at < self._end

    def parse_next(self) -> None:
        """Parse the next part. Raises an error of orjson or struct if it has anything but numbers of the datatype."""
        cut = self._text.find(b",", self._at + _PIECE, self._end)
        if cut < 0:
            cut = self._end
        values = orjson.loads(b"[%b]" % self._text[self._at : cut])
        self._packed.append(packer(self._spec.datatype, len(values))(*values))
        self._at = cut + 1

    def finish(self) -> DecodedCall:
        """The decoded call, after the last part. Raises BadRequest, also for a comma after the last number."""
        request = orjson.loads(self._rest)
        request["inputs"][0]["data"] = memoryview(b"".join(self._packed))
        return decode_request(request, memoryview(b""), self._info, bools=True)[0]


#: Errors of IncrementalDecode for a body that must be parsed whole, which then names what is wrong.
NOT_PLAIN = (BadRequest, ValueError, TypeError, LookupError, OverflowError, struct.error)


def begin_incremental(text: bytes, info: ModelInfo) -> IncrementalDecode:
    """Begin to decode a body whose first tensor is a flat list of numbers.

    Raises ValueError if it is not one, and BadRequest for a wrong count of numbers. Slow: call it on a helper thread.
    """
    found = first_data(text, info)
    if found is None or has_bools(text):
        raise ValueError("not numbers alone")
    spec, start = found
    end = text.find(b"]", start)
    if end < 0 or any(text.find(mark, start, end) >= 0 for mark in (b"[", b"{", b'"')):
        raise ValueError("not a flat list")
    return IncrementalDecode(text, start, end, spec, info)
