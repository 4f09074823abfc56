"""The base of codecs for models that generate text. One prompt is one row."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial

from app.contract import Answer, Served
from app.http.body import Limits, RequestHeaders
from app.http.codecs.base import DecodedCall
from app.http.codecs.events import GeneratedText, Stream
from app.http.codecs.text_codec import TextCodec


class TextGeneration(TextCodec):
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
