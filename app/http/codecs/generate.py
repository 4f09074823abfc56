"""`POST /v2/models/M/generate` and `/generate_stream`: Triton's generate extension.

As in Triton, fields besides `text_input`, `parameters` and `id` are parameters too.
"""

from __future__ import annotations

from typing import Any

import orjson

from app.contract import Answer, Served
from app.errors import BadRequest
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import DecodedCall
from app.http.codecs.events import event
from app.http.codecs.text_codec import bad_field, unexpected
from app.http.codecs.text_generation import TextGeneration
from app.http.codecs.v2_decode import may_name_class, take_parameters
from app.values.tensors import shown

_TEXT = "text_input"
_FIELDS = (_TEXT, "parameters", "id")


class Generate(TextGeneration):
    """One text, answered by a JSON object. The path names the model, so `decode` itself calls `with_body`."""

    names_class = True
    streams = False

    def may_name_class(self, body: bytes) -> bool:
        return may_name_class(body)

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        return super(Generate, self.with_body(body, limits)).decode(served, headers, body, limits)

    def columns(self, served: Served) -> list[list[str]]:
        text = self.body.get(_TEXT)
        if not isinstance(text, str):
            raise unexpected(_TEXT, "a text", text)
        return [[text]]

    def field_of(self, name: str, row: int | None) -> str:
        return _TEXT

    def set_parameters(self, served: Served, call: DecodedCall) -> None:
        own = self.body.get("parameters")
        if own is not None and not isinstance(own, dict):
            raise BadRequest("parameters: expected an object")
        given = {**{name: value for name, value in self.body.items() if name not in _FIELDS}, **(own or {})}
        streams = given.pop("stream", self.streams)  # sent by the examples of Triton's backends
        if streams is not self.streams:
            other = "generate" if self.streams else "generate_stream"
            raise bad_field("parameters.stream", f"expected {str(self.streams).lower()} here, got {shown(streams)}; "
                        f"the other route is {other}")  # fmt: skip
        if "max_tokens" in given:  # its name in Triton's backends
            given["max_new_tokens"] = given.pop("max_tokens")
        take_parameters({"parameters": given}, call)
        call.id = self.body.get("id")
        if call.id is not None and not isinstance(call.id, str):
            raise BadRequest("id: expected a string")

    def events(self, served: Served, call: DecodedCall, row: int, piece: str, reason: str, first: bool) -> bytes:
        return event(orjson.dumps(_object(served, call, piece))) if piece else b""  # the last event has the reason

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        (one,) = self.texts(call, answer)
        found = _object(served, call, one.text)
        found |= {"finish_reason": one.reason, "prompt_tokens": one.read, "generated_tokens": one.written}
        body = orjson.dumps(found)
        return body if call.stream is None else event(body), None


class GenerateStream(Generate):
    """The same as events with pieces of the text. The last has the finish reason and the counts."""

    streams = True


def _object(served: Served, call: DecodedCall, text: str) -> dict[str, Any]:
    head = {} if call.id is None else {"id": call.id}
    return {**head, "model_name": served.info.name, "model_version": served.info.version, "text_output": text}
