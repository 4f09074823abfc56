"""`POST /v2/models/M/generate` and `/generate_stream`: Triton's generate extension.

As in Triton, fields besides `text_input`, `parameters` and `id` are parameters too, and a list of one element is that
element. A body with `inputs` in place of `text_input` is that of Text Generation Inference, and so is its answer.
"""

from __future__ import annotations

from typing import Any

import orjson

from app.contract import Answer, GeneratedText, Served
from app.errors import bad_field
from app.http.codecs.base import DecodedCall, event
from app.http.codecs.text_codec import TextGeneration, unexpected
from app.http.codecs.v2_decode import parameters_of, take_parameters
from app.values.tensors import shown

_TEXT = "text_input"
_INPUTS = "inputs"
_FIELDS = (_TEXT, "parameters", "id", "model")  # the path names the model
_REASONS = {"stop": "eos_token", "length": "length"}  # their names in Text Generation Inference


class Generate(TextGeneration):
    """One text, answered by a JSON object. The path names the model."""

    names_class = True
    streams = False

    def columns(self, served: Served) -> list[list[str]]:
        text = _single(self.body.get(self._sent))
        if not isinstance(text, str):
            raise unexpected(self._sent, "a text", text)
        return [[text]]

    @property
    def _sent(self) -> str:
        """The field with the text: Triton's, or that of Text Generation Inference, which has answers of its own."""
        return _INPUTS if _INPUTS in self.body and _TEXT not in self.body else _TEXT

    def field_of(self, name: str, row: int | None) -> str:
        return self._sent

    def set_parameters(self, served: Served, call: DecodedCall) -> None:
        own = parameters_of(self.body, self.body.get("parameters"), "parameters")
        beside = {name: value for name, value in self.body.items() if name not in (*_FIELDS, self._sent)}
        given = {name: _single(value) for name, value in beside.items()}
        for name, value in own.items():
            if given.setdefault(name, _single(value)) != _single(value):
                raise bad_field(f"parameters.{name}", f"expected the value of {name}, got {shown(value)}")
        streams = given.pop("stream", None)  # sent by the examples of Triton's backends
        if streams not in (None, self.streams):
            other = "generate" if self.streams else "generate_stream"
            raise bad_field("parameters.stream", f"expected {str(self.streams).lower()} here, got {shown(streams)}; "
                        f"the other route is {other}")  # fmt: skip
        take_parameters({"id": self.body.get("id"), "parameters": given}, call)

    def events(self, served: Served, call: DecodedCall, row: int, piece: GeneratedText, first: bool) -> bytes:
        if not piece.text:  # the last event has the reason
            return b""
        is_tgi = self._sent == _INPUTS
        return event(orjson.dumps(_token(piece, None, None) if is_tgi else _object(served, call, piece.text)))

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        (one,) = self.texts(call, answer)
        if self._sent == _INPUTS:
            whole = answer.outputs[0].item().decode()
            details = {"finish_reason": _REASONS[one.reason], "generated_tokens": one.written, "seed": None}
            found = {"generated_text": whole, "details": details}
            if call.stream is not None:
                found = _token(one, whole, details)
        else:
            found = _object(served, call, one.text)
            found |= {"finish_reason": one.reason, "prompt_tokens": one.read, "generated_tokens": one.written}
        body = orjson.dumps(found)
        return body if call.stream is None else event(body), None


class GenerateStream(Generate):
    """The same as events with pieces of the text. The last has the finish reason and the counts."""

    streams = True


def _single(value: Any) -> Any:
    """A value, or that of a list with one element, which clients send for a tensor of shape [1]."""
    while isinstance(value, list) and len(value) == 1:
        (value,) = value
    return value


def _token(piece: GeneratedText, whole: str | None, details: dict[str, Any] | None) -> dict[str, Any]:
    """An event of Text Generation Inference; `whole` and `details`: of the last one."""
    token = {"id": 0, "text": piece.text, "logprob": None, "special": False}
    return {"index": piece.written, "token": token, "generated_text": whole, "details": details}


def _object(served: Served, call: DecodedCall, text: str) -> dict[str, Any]:
    head = {} if call.id is None else {"id": call.id}
    return {**head, "model_name": served.info.name, "model_version": served.info.version, "text_output": text}
