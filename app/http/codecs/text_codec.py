"""The base of codecs whose bodies are JSON objects with texts, as those of OpenAI and Cohere.

Most such bodies name the model. `with_body` returns a codec for one request, which keeps the parsed body: `choose`
returns the model's name, and the other methods read the body too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np

from app.contract import Answer, Catalog, Front, GeneratedText, Served, TextCut
from app.errors import BadRequest, BadText, NotReady, StarlingError, TooLarge, bad_field
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import Codec, DecodedCall, Stream, check_rows
from app.http.codecs.v2_decode import load_json
from app.values.tensors import shown
from app.values.text_fields import refuse_unknown

TOKENS = "tokens"  # the axis of a task's texts
_SIDES = {"left": True, "right": False}
#: TEI's, Voyage's and Hugging Face's true and false; Cohere's and NIM's words; the number of tokens, of TGI.
_CUTS = {"NONE": None, "END": TextCut(left=False), "START": TextCut(left=True)}
#: What a request says about texts that are too long: to cut them, and where. The names are those of other servers.
CUT_FIELDS = frozenset({
    "truncate", "truncation", "truncate_prompt_tokens", "max_tokens_per_doc", "truncation_direction", "truncation_side",
})  # fmt: skip


class TextCodec(Codec):
    """`body`: of the request; None for the codec in the table of routes, which has seen none."""

    reads_first = True
    kind = ""  # what models the route needs, for messages
    sent = ""  # the field of its bodies that has the texts
    fields: frozenset[str] | None = None  # of its bodies; None: others than these are parameters of the model

    def __init__(self, body: Mapping[str, Any] | None = None) -> None:
        self.body: Mapping[str, Any] = body or {}

    # for subclasses

    @abstractmethod
    def supports(self, served: Served) -> bool:
        """Whether the model can serve the route."""

    def columns(self, served: Served) -> list[list[str]]:
        """The texts of each input. Raises BadRequest."""
        return [texts_or_one(self.body.get(self.sent), self.sent)]

    def field_of(self, name: str, row: int | None) -> str:
        """The field of the body that has the text of this input and row, for messages."""
        value = self.body.get(self.sent)
        return self.sent if isinstance(value, str) or _are_ids(value) else f"{self.sent}[{row or 0}]"

    # the model

    def with_body(self, body: bytes, limits: Limits) -> Self:
        """The codec of this request. Raises BadRequest or TooLarge."""
        if len(body) > limits.json:
            raise TooLarge(
                f"body: expected at most {limits.json} bytes of JSON (--max-json-mib), got {len(body)}; "
                "send the texts in several requests"
            )
        value = load_json(body)
        if not isinstance(value, dict):
            raise BadRequest("body: expected an object")
        return type(self)(value)

    def choose(self, catalog: Catalog) -> str:
        """The model's name: from the body, or that of the only model that supports the route.

        Raises BadRequest, or NotReady if none does yet.
        """
        name = self.body.get("model")
        if name is not None:
            if not isinstance(name, str) or not name:
                raise bad_field("model", f"expected the name of a model, got {shown(name)}")
            return name
        able = sorted({served.info.name for served in catalog.ready() if self.supports(served)})
        if not able and (awaited := sorted({entry.name for entry in catalog.index() if entry.awaited})):
            raise NotReady(f"model: missing, and {self.kind} does not serve yet; not ready: {', '.join(awaited)}")
        if len(able) != 1:
            expected = f"one of {', '.join(able)}" if able else f"the name of {self.kind}, of which none serves"
            raise bad_field("model", f"missing; expected {expected}")
        return able[0]

    # Codec

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        if not self.supports(served):
            raise bad_field("model", f"expected {self.kind}, got {served.info.name!r}, which is none")
        if self.fields is not None:
            refuse_unknown(self.body, self.fields | CUT_FIELDS)
        columns = self.columns(served)
        check_rows(served.info, len(columns[0]))
        as_bytes = lru_cache(1)(str.encode)  # a query that is in each row is made bytes once
        arrays = [np.array(list(map(as_bytes, texts)), object) for texts in columns]
        cutting = {name: self.body[name] for name in CUT_FIELDS & self.body.keys()}
        if self.front(served) is None:
            cut_of(cutting, None)  # raises if it asks for a cut
            cutting = {}
            specs = served.info.client_inputs
            arrays = [array.reshape(-1, *spec.shape) for array, spec in zip(arrays, specs, strict=True)]
        return DecodedCall(len(arrays[0]), list(arrays), {}, parameters=cutting or None)

    def bad_text_error(self, error: BadText) -> StarlingError:
        return type(error)(self.field_of(error.name, error.row), None, error.wrong)


class TextGeneration(TextCodec):
    """The base of codecs for models that generate text. One prompt is one row."""

    may_stream = True
    kind = "a model that writes texts"

    # for subclasses

    @property
    @abstractmethod
    def streams(self) -> bool:
        """Whether the answer is streamed."""

    @abstractmethod
    def set_parameters(self, served: Served, call: DecodedCall) -> None:
        """Set what the request asks for besides its texts, in the call. Raises BadRequest."""

    @abstractmethod
    def events(self, served: Served, call: DecodedCall, row: int, piece: GeneratedText, first: bool) -> bytes:
        """The events for a piece of the row's text."""

    # Codec

    def supports(self, served: Served) -> bool:
        return served.model.writes

    def decode(self, served: Served, headers: RequestHeaders, body: bytes, limits: Limits) -> DecodedCall:
        call = super().decode(served, headers, body, limits)
        self.set_parameters(served, call)
        if self.streams:
            call.stream = Stream(partial(self.events, served, call))
        return call

    def texts(self, call: DecodedCall, answer: Answer) -> list[GeneratedText]:
        """The texts of the rows; of a stream, only what has not been sent."""
        columns = [column.tolist() for column in answer.outputs]
        found = [
            GeneratedText(text.decode(), reason.decode(), *counts)
            for text, reason, *counts in zip(*columns, strict=True)
        ]
        if (stream := call.stream) is None:
            return found
        return [one._replace(text=one.text[stream.rest(row) :]) for row, one in enumerate(found)]


def unexpected(field: str, expected: str, value: object) -> BadRequest:
    """The error for a field with a wrong value; null counts as missing."""
    return bad_field(
        field, f"missing; expected {expected}" if value is None else f"expected {expected}, got {shown(value)}"
    )


def _are_ids(value: object) -> bool:
    """Whether it is a prompt as ids of tokens."""
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def prompts_of_ids(value: object) -> list[list[int]] | None:
    """One prompt as ids of tokens, or a list of such; None if it is neither."""
    prompts = [value] if _are_ids(value) else value
    return prompts if isinstance(prompts, list) and prompts and all(map(_are_ids, prompts)) else None


def texts_of(value: object, field: str) -> list[str]:
    """A list of at least one text. Raises BadRequest that names the first element that is not a text."""
    if not isinstance(value, list) or not value:
        raise unexpected(field, "a list of at least one text", value)
    for place, text in enumerate(value):
        if not isinstance(text, str):
            raise bad_field(f"{field}[{place}]", f"expected a text, got {shown(text)}")
    return value


def texts_or_one(value: object, field: str) -> list[str]:
    """One text, or a list of them, as OpenAI's clients send either. Raises BadRequest as `texts_of`."""
    if isinstance(value, str):
        return [value]
    if prompts_of_ids(value) is not None:
        raise bad_field(field, "expected a text or a list of texts, got ids of tokens: the model has its own tokenizer")
    return texts_of(value, field)


def tokens_of(call: DecodedCall) -> int:
    """The number of tokens in the call's texts; 0 if the model has no tokens."""
    own = (call.own_lengths or {}).get(TOKENS)
    return call.lengths.get(TOKENS, 0) * call.rows if own is None else sum(own)


def take_cut(call: DecodedCall, front: Front) -> TextCut | None:
    """Take the fields of CUT_FIELDS out of the call's parameters; see `cut_of`."""
    given = call.parameters
    if not given or CUT_FIELDS.isdisjoint(given):
        return None
    call.parameters = {name: value for name, value in given.items() if name not in CUT_FIELDS}
    return cut_of(given, front)


def cut_of(given: Mapping[str, Any], front: Front | None) -> TextCut | None:
    """What the fields of CUT_FIELDS among these say; None: long texts are refused. Raises BadRequest."""
    left: bool | None = None
    for name in ("truncation_direction", "truncation_side"):
        if (side := given.get(name)) is not None:
            left = _SIDES.get(side.lower()) if isinstance(side, str) else None
            if left is None:
                raise bad_field(name, f"expected left or right, got {shown(side)}")
    found = [_cut(name, value) for name, value in given.items() if name in CUT_FIELDS and value is not None]
    cuts = [cut for cut in found if cut is not None]
    if not cuts:
        return None
    if len(cuts) > 1:
        raise bad_field(cuts[0].name, f"expected nothing beside {cuts[1].name}")
    (cut,) = cuts
    if front is None or not front.reader.cuts or (cut.last and len(front.reader.sent) < 2):
        raise bad_field(cut.name, "not accepted: this model reads texts whole")
    return TextCut(cut.most, cut.left if left is None else left, cut.last, cut.name)


def _cut(name: str, value: Any) -> TextCut | None:
    if name.startswith("truncation_"):
        return None
    if name in ("truncate", "truncation") and (type(value) is bool or isinstance(value, str)):
        if isinstance(value, str) and value.upper() not in _CUTS:
            raise bad_field(name, f"expected true, false, NONE, START, END or a number of tokens, got {shown(value)}")
        cut = _CUTS[value.upper()] if isinstance(value, str) else TextCut() if value else None
        return None if cut is None else TextCut(None, cut.left, name=name)
    if name == "truncate_prompt_tokens" and value == -1 and type(value) is int:
        return TextCut(name=name)
    if type(value) is not int or value < 1:
        raise bad_field(name, f"expected a number of at least 1, got {shown(value)}")
    return TextCut(value, last=name == "max_tokens_per_doc", name=name)
