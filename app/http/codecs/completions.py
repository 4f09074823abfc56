"""`POST /v1/completions` and `/v1/chat/completions`, compatible with OpenAI's clients."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from app.contract import Answer, Front, Served
from app.errors import BadRequest
from app.http.codecs.base import DecodedCall
from app.http.codecs.events import Stream, event
from app.http.codecs.text_codec import bad_field, texts_or_one, unexpected
from app.http.codecs.text_generation import GeneratedText, TextGeneration
from app.values.tensors import shown

_DONE = event(b"[DONE]")
#: Fields that are accepted only with OpenAI's default values, and why others are refused. null counts as not given.
_ONLY: Mapping[str, tuple[tuple[Any, ...], str]] = {
    **dict.fromkeys(("n", "best_of"), ((1,), "a prompt has one answer; ask again for another")),
    **dict.fromkeys(("logprobs", "top_logprobs"), ((False,), "probabilities of tokens are not given")),
    **dict.fromkeys(("tools", "functions"), (([],), "the model calls no tools")),
    **dict.fromkeys(("tool_choice", "function_call"), (("none",), "the model calls no tools")),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), ((0,), "there is repetition_penalty")),
    "logit_bias": (({},), "tokens are the model's own"),
    "echo": ((False,), "an answer has what the model has written"),
    "suffix": (("",), "a text is continued at its end"),
    "response_format": (({"type": "text"},), "the model writes texts"),
    "modalities": ((["text"],), "the model writes texts"),
    "store": ((False,), "answers are not kept"),
    "service_tier": (("auto", "default"), "the class of a request is its header X-Class"),
}
#: Fields without influence on the text: ignored.
_ASIDE = frozenset({
    "metadata", "parallel_tool_calls", "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention",
    "safety_identifier", "user",
})  # fmt: skip
_OWN = frozenset({"model", "prompt", "messages", "stream", "stream_options", "max_tokens", "max_completion_tokens"})


class Completions(TextGeneration):
    """Texts that continue prompts. Fields that OpenAI does not know are parameters of the model."""

    sent = "prompt"
    objects = ("text_completion", "text_completion")  # `object` of a whole answer, and of a chunk
    prefix = "cmpl"

    def __init__(self, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(body)
        self._id = f"{self.prefix}-{secrets.token_hex(12)}"
        self._created = int(time.time())
        self._ended: set[int] = set()  # rows whose last chunk is in the stream

    # the request

    def columns(self, served: Served) -> list[list[str]]:
        return [texts_or_one(self.body.get("prompt"), "prompt")]

    def field_of(self, name: str, row: int | None) -> str:
        return self.sent if isinstance(self.body.get(self.sent), str) else f"{self.sent}[{row or 0}]"

    @property
    def streams(self) -> bool:
        return _flag(self.body, "stream", "stream")

    @property
    def counts(self) -> bool:
        """Whether the stream ends with the counts of tokens."""
        options = self.body.get("stream_options")
        if options is None:
            return False
        if not isinstance(options, dict):
            raise unexpected("stream_options", "an object", options)
        if not self.streams:
            raise bad_field("stream_options", "expected nothing without stream")
        for name, value in options.items():
            if name != "include_usage" and value:
                raise bad_field(f"stream_options.{name}", f"expected include_usage alone, got {shown(value)}")
        return _flag(options, "include_usage", "stream_options.include_usage")

    def set_parameters(self, served: Served, call: DecodedCall) -> None:
        self.counts  # noqa: B018  # raises if the option is wrong
        body = {name: value for name, value in self.body.items() if value is not None and name not in _ASIDE}
        for name, (allowed, why) in _ONLY.items():
            if name in body and not any(_same(body[name], one) for one in allowed):
                raise bad_field(name, f"expected {shown(allowed[0])}, got {shown(body[name])}: {why}")
        given = {name: value for name, value in body.items() if name not in _OWN and name not in _ONLY}
        limit = next((name for name in ("max_completion_tokens", "max_tokens") if name in body), None)
        if limit is not None:
            given["max_new_tokens"] = body[limit]
        given.setdefault("do_sample", True)  # OpenAI's default temperature is 1, which samples
        _check(served, given, {} if limit is None else {"max_new_tokens": limit})
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

    def events(self, served: Served, call: DecodedCall, row: int, piece: str, reason: str, first: bool) -> bytes:
        found = self._chunk(served, row, self.piece(piece, first), None) if piece or first else b""
        if reason:
            self._ended.add(row)
            found += self._chunk(served, row, self.piece("", False), reason)
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
            self.events(served, call, row, one.text, one.reason, not stream.sent[row])
            for row, one in enumerate(texts)
            if row not in self._ended
        ]
        if self.counts:
            events.append(event(orjson.dumps({**self._head(served, 1), "choices": [], "usage": _usage(texts)})))
        return b"".join((*events, _DONE))

    def _chunk(self, served: Served, row: int, piece: Mapping[str, Any], reason: str | None) -> bytes:
        choice = {**piece, "index": row, "logprobs": None, "finish_reason": reason}
        usage = {"usage": None} if self.counts else {}
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

    def whole(self, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def piece(self, text: str, first: bool) -> dict[str, Any]:
        role = {"role": "assistant"} if first else {}
        return {"delta": {**role, "content": text} if text or first else {}}


def _flag(fields: Mapping[str, Any], name: str, field: str) -> bool:
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise unexpected(field, "true or false", value)
    return bool(value)


def _same(given: Any, value: Any) -> bool:
    """Whether they are equal as JSON: true is not 1."""
    return given == value and (type(given) is bool) == (type(value) is bool)


def _check(served: Served, given: Mapping[str, Any], names: Mapping[str, str]) -> None:
    """Raise BadRequest if the model refuses a parameter. `names`: names in the request, where they differ."""
    read = served.model.read_parameters
    try:
        if read is not None:
            read(given)
    except BadRequest as error:
        name, _, what = error.message.removeprefix("parameters.").partition(": ")
        raise bad_field(names.get(name, name), what) from None


def _message(message: Any, place: str) -> dict[str, Any]:
    """A message with its content as one text. Other fields are passed on to the template unchecked."""
    if not isinstance(message, dict):
        raise unexpected(place, "an object with role and content", message)
    if not isinstance(message.get("role"), str):
        raise unexpected(f"{place}.role", "a text", message.get("role"))
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(part, f"{place}.content[{at}]") for at, part in enumerate(content))
    if not isinstance(content, str):
        raise unexpected(f"{place}.content", "a text", content)
    return {**message, "content": content}


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise unexpected(place, 'a part of type "text"', part)
    text: str = part["text"]
    return text


def _usage(texts: Sequence[GeneratedText]) -> dict[str, int]:
    read, written = sum(one.read for one in texts), sum(one.written for one in texts)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
