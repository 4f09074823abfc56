"""Large V2 bodies of JSON, parsed in pieces, so that the event loop runs between them.

A JSON parser holds the interpreter lock until it returns: for 1 MiB of numbers that is some 8 ms, in which no other
request is answered. Nearly all of a large body is one flat list of numbers, which can be cut at any comma. A body that
is not so plain, or is wrong, is parsed whole.
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
    """A request without the numbers of its first tensor, and these numbers."""

    def __init__(self, text: bytes, start: int, end: int, spec: TensorSpec, info: ModelInfo) -> None:
        self._text, self._at, self._end = text, start, end
        self._rest = text[:start] + text[end:]
        self._spec, self._info = spec, info
        self._packed: list[bytes] = []

    @property
    def unfinished(self) -> bool:
        return self._at < self._end

    def parse_next(self) -> None:
        """Parse the next piece. Raises an error of orjson or struct if it is more than numbers of the datatype."""
        cut = self._text.find(b",", self._at + _PIECE, self._end)
        if cut < 0:
            cut = self._end
        values = orjson.loads(b"[%b]" % self._text[self._at : cut])
        self._packed.append(packer(self._spec.datatype, len(values))(*values))
        self._at = cut + 1

    def finish(self) -> DecodedCall:
        """The whole request, when no piece is left. Raises BadRequest, also for a comma behind the last number."""
        request = orjson.loads(self._rest)
        request["inputs"][0]["data"] = memoryview(b"".join(self._packed))
        return decode_request(request, memoryview(b""), self._info, bools=True)[0]


#: What `Pieces` raises of a body that is to be parsed whole, which names its fault.
NOT_PLAIN = (BadRequest, ValueError, TypeError, LookupError, OverflowError, struct.error)


def begin_incremental(text: bytes, info: ModelInfo) -> IncrementalDecode:
    """Of a body whose first tensor is a flat list of numbers.

    Raises ValueError if it is not, and BadRequest for too many or too few numbers. What is left of the body may be long
    as well, so all of this belongs on a thread.
    """
    found = first_data(text, info)
    if found is None or has_bools(text):
        raise ValueError("not numbers alone")
    spec, start = found
    end = text.find(b"]", start)
    if end < 0 or any(text.find(mark, start, end) >= 0 for mark in (b"[", b"{", b'"')):
        raise ValueError("not a flat list")
    return IncrementalDecode(text, start, end, spec, info)
