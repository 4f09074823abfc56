"""`POST /v2/models/M/infer_stream`: V2 inference that streams the outputs of each step of a recurrent model.

Each event is a V2 response about one row, whose index is the parameter `row`: the outputs of its steps since its last
event. When all rows have ended, one last event per row has the remaining steps, all other outputs, and `final`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from app.contract import Answer, Array, Served
from app.errors import BadRequest
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import DecodedCall
from app.http.codecs.events import Stream, event
from app.http.codecs.v2 import V2, encode_any


class InferStream(V2):
    """Takes the bodies of `infer`; outputs are JSON only."""

    may_stream = True

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        return self.finish_decoding(served, super().decode(served, headers, body, limits))

    def finish_decoding(self, served: Served, call: DecodedCall) -> DecodedCall:
        """See V2. Raises BadRequest if the model has nothing to stream, or an output is requested as binary."""
        info, steps = served.info, served.model.streams
        if not steps:
            other = "; it writes texts: the route is generate_stream" if served.model.writes else ""
            raise BadRequest(
                f"infer_stream: expected a recurrent model with an output for each step, got {info.name!r}{other}"
            )
        asked = call.outputs or [(index, spec.datatype == "BF16") for index, spec in enumerate(info.outputs)]
        for index, binary in asked:
            if binary:
                raise BadRequest(f"outputs ({info.outputs[index].name}): expected JSON, as events are, got binary")
        call.outputs = asked

        def events(row: int, pieces: list[Any], first: bool) -> bytes:
            found: list[Array] = [np.empty(0)] * len(info.outputs)
            for place, parts in zip(steps, zip(*pieces, strict=True), strict=True):
                found[place] = np.concatenate(parts)[None]
            which = [index for index, _ in asked if index in steps]
            return _event(served, call, which, found, {"row": row}) if which else b""

        call.stream = Stream(events, size=lambda piece: len(piece[0]))
        return call

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        assert call.stream is not None  # see `decode`
        info, steps = served.info, served.model.streams
        body = b""
        for row in range(call.rows):
            found, sent = [], call.stream.rest(row)
            for index, (spec, values) in enumerate(zip(info.outputs, answer.outputs, strict=True)):
                own = answer.lengths[row] if answer.lengths is not None and info.has_own_length(spec) else None
                found.append(values[row : row + 1, sent:own] if index in steps else values[row : row + 1])
            body += _event(served, call, [index for index, _ in call.outputs or ()], found, {"row": row, "final": True})
        return body, None


def _event(
    served: Served, call: DecodedCall, which: Sequence[int], values: list[Array], parameters: dict[str, Any]
) -> bytes:
    """The event of the outputs `which` of a row. `values` has an entry for every output; the others are ignored."""
    one = replace(call, outputs=[(index, False) for index in which])
    return event(encode_any(one, Answer(values, 0, (0, 0, 0), 0), served.info, parameters)[0])
