"""JSON headers of binary requests that have been decoded before.

A client that sends tensors as bytes sends the same JSON before them each time. With the length of what follows it says
all of the request but the values, so the second time it is only looked up.
"""

from __future__ import annotations

from typing import NamedTuple

from app.contract import Array, ModelInfo
from app.http.codecs.base import DecodedCall

#: Where in the bytes behind the header each input lies, in declared order; None: not all of them do.
Spans = list[tuple[int, int]] | None

_MOST, _LONGEST = 256, 1024  # headers remembered, and bytes of each


class _Known(NamedTuple):
    size: int  # of what follows the header
    spans: list[tuple[int, int]]
    call: DecodedCall


def known_header(info: ModelInfo, text: bytes, tail: memoryview) -> DecodedCall | None:
    """The call that a header means with these bytes behind it, if it is known."""
    known: _Known | None = info.memo.get(text)
    if known is None or known.size != len(tail):
        return None
    call = known.call
    arrays: list[Array | memoryview] = [tail[start:end] for start, end in known.spans]
    return DecodedCall(
        call.rows, arrays, call.lengths, call.priority, call.timeout_us, None, None, call.outputs, False, call.klass
    )


def remember_header(info: ModelInfo, text: bytes, call: DecodedCall, spans: Spans) -> None:
    """Keep what a header means, if it depends on nothing but the header: values of BOOL and BYTES must be looked at."""
    if (
        spans is None or len(text) > _LONGEST or call.id is not None or call.parameters is not None
        or any(spec.datatype in ("BOOL", "BYTES") for spec in info.client_inputs)
    ):  # fmt: skip
        return
    if len(info.memo) >= _MOST:
        info.memo.clear()
    size = max((end for _, end in spans), default=0)
    outputs = None if call.outputs is None else list(call.outputs)
    kept = DecodedCall(
        call.rows, [], dict(call.lengths), call.priority, call.timeout_us, outputs=outputs, klass=call.klass
    )
    info.memo[text] = _Known(size, spans, kept)
