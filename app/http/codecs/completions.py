"""`POST /v1/completions` and `/v1/chat/completions`, compatible with OpenAI's clients."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import orjson

from app.contract import Answer, Front, GeneratedText, Served
from app.errors import bad_field
from app.http.codecs.base import DecodedCall, Stream, event
from app.http.codecs.text_codec import TextGeneration, prompts_of_ids, unexpected
from app.http.codecs.v2_decode import flag
from app.values.tensors import shown

_DONE = event(b"[DONE]")
_OWN = frozenset({"model", "stream", "stream_options"})


_COUNTS = ("include_usage", "continuous_usage_stats")
#: The types of a content's parts, and where each has its text.
_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class Completions(TextGeneration):
    """Texts that continue prompts. Fields besides `sent` and those of _OWN are parameters of the model."""

    sent = "prompt"
    objects = ("text_completion", "text_completion")  # `object` of a whole answer, and of a chunk
    prefix = "cmpl"

    def __init__(self, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(body)
        self._id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._ended: set[int] = set()  # rows whose last chunk is in the stream
        #: Whether the stream ends with the counts of tokens, and whether each chunk has those so far.
        self._counts_last = self._counts_each = False

    # the request

    def front(self, served: Served) -> Front | None:
        front = served.model.front
        return front if front is None or self._ids is None else front.ids

    @cached_property
    def _ids(self) -> list[list[int]] | None:
        """The prompts, if they are lists of tokens."""
        return prompts_of_ids(self.body.get("prompt"))

    def columns(self, served: Served) -> list[list[str]]:
        if (ids := self._ids) is None or self.front(served) is None:
            return super().columns(served)
        return [[orjson.dumps(one).decode() for one in ids]]

    @property
    def streams(self) -> bool:
        return flag(self.body, "stream", "stream")

    def _read_stream_options(self) -> None:
        """Raises BadRequest."""
        options = self.body.get("stream_options")
        if options is None:
            return
        if not isinstance(options, dict):
            raise unexpected("stream_options", "an object", options)
        if not self.streams:
            raise bad_field("stream_options", "expected nothing without stream")
        for name, value in options.items():
            if name not in _COUNTS and value:
                raise bad_field(f"stream_options.{name}", f"expected {' and '.join(_COUNTS)} alone, got {shown(value)}")
        self._counts_last, each = (flag(options, name, f"stream_options.{name}") for name in _COUNTS)
        self._counts_each = self._counts_last and each  # as in vLLM

    def set_parameters(self, served: Served, call: DecodedCall) -> None:
        self._read_stream_options()
        own = {*_OWN, self.sent}
        given = {name: value for name, value in self.body.items() if name not in own and value is not None}
        if "max_completion_tokens" in given:
            given.pop("max_tokens", None)  # the older field, which it replaces, also in vLLM and Triton
        given.setdefault("do_sample", True)  # OpenAI's default temperature is 1, which samples
        call.parameters = given

    # the answer

    def encode(self, served: Served, call: DecodedCall, answer: Answer) -> tuple[bytes, int | None]:
        texts = self.texts(call, answer)
        if call.stream is not None:
            return self._last(served, call, texts, call.stream), None
        choices = [
            {**self.whole(one.text), "index": row, "logprobs": None, "finish_reason": one.reason}
            for row, one in enumerate(texts)
        ]
        return orjson.dumps({**self._head(served, 0), "choices": choices, "usage": _usage(texts)}), None

    def events(self, served: Served, call: DecodedCall, row: int, piece: GeneratedText, first: bool) -> bytes:
        text = piece.text
        found = self._chunk(served, row, self.piece(text, first), piece, None) if text or first else b""
        if piece.reason:
            self._ended.add(row)
            found += self._chunk(served, row, self.piece("", False), piece, piece.reason)
        return found

    def whole(self, text: str) -> dict[str, Any]:
        """The text, as a choice of a whole answer has it."""
        return {"text": text}

    def piece(self, text: str, first: bool) -> dict[str, Any]:
        """A piece of the text, as the choice of a chunk has it; "" in the last chunk."""
        return {"text": text}

    def _last(self, served: Served, call: DecodedCall, texts: Sequence[GeneratedText], stream: Stream) -> bytes:
        """The events that end the stream."""
        events = [
            self.events(served, call, row, one, not stream.sent[row])
            for row, one in enumerate(texts)
            if row not in self._ended
        ]
        if self._counts_last:
            events.append(event(orjson.dumps({**self._head(served, 1), "choices": [], "usage": _usage(texts)})))
        return b"".join((*events, _DONE))

    def _chunk(
        self, served: Served, row: int, piece: Mapping[str, Any], so_far: GeneratedText, reason: str | None
    ) -> bytes:
        choice = {**piece, "index": row, "logprobs": None, "finish_reason": reason}
        usage = {"usage": _usage([so_far]) if self._counts_each else None} if self._counts_last else {}
        return event(orjson.dumps({**self._head(served, 1), "choices": [choice], **usage}))

    def _head(self, served: Served, kind: int) -> dict[str, Any]:
        return {"id": self._id, "object": self.objects[kind], "created": self._created, "model": served.info.name}


class ChatCompletions(Completions):
    """Answers in a conversation. The model's chat template makes one text of its messages."""

    sent = "messages"
    objects = ("chat.completion", "chat.completion.chunk")
    prefix = "chatcmpl"

    def front(self, served: Served) -> Front | None:
        front = served.model.front
        return None if front is None else front.chat

    def columns(self, served: Served) -> list[list[str]]:
        if self.front(served) is None:
            raise bad_field("model", f"{served.info.name!r} has no chat template; ask it with /v1/completions")
        messages = self.body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise unexpected("messages", "a list of at least one message", messages)
        return [[orjson.dumps([_message(one, f"messages[{at}]") for at, one in enumerate(messages)]).decode()]]

    def field_of(self, name: str, row: int | None) -> str:
        return "messages"

    def set_parameters(self, served: Served, call: DecodedCall) -> None:
        if self.body.get("add_special_tokens") is False:  # the template writes them
            self.body = {**self.body, "add_special_tokens": None}
        super().set_parameters(served, call)

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def piece(self, text: str, first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        return {"delta": {**role, "content": text} if text or first else {}}


def _message(message: Any, place: str) -> dict[str, Any]:
    """A message with its content as one text. Other fields are passed on to the template unchecked."""
    if not isinstance(message, dict):
        raise unexpected(place, "an object with role and content", message)
    if not isinstance(message.get("role"), str):
        raise unexpected(f"{place}.role", "a text", message.get("role"))
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.content[{at}]") for at, part in enumerate(content))
    if content is None and message["role"] == "assistant":  # it called tools, or refused
        content = message.get("refusal") or ("" if calls or message.get("function_call") else None)
    if not isinstance(content, str):
        raise unexpected(f"{place}.content", "a text", content)
    found = {**message, "content": content}
    if calls is not None:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise unexpected(f"{place}.tool_calls", "a list of objects", calls)
        found["tool_calls"] = [_tool_call(call) for call in calls]
    return found


def _tool_call(call: dict[str, Any]) -> dict[str, Any]:
    """The call with its arguments as an object: templates write them as JSON themselves."""
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = orjson.loads(function["arguments"] or "{}")
    except ValueError:
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _part(part: Any, place: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get(_PARTS[kind]) if isinstance(kind, str) and kind in _PARTS else None
    if not isinstance(text, str):
        raise unexpected(place, f"a part of type {', '.join(_PARTS)}", part)
    return text


def _usage(texts: Sequence[GeneratedText]) -> dict[str, int]:
    read, written = sum(one.read for one in texts), sum(one.written for one in texts)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
