"""A decoder with its tokenizer: rows of token ids in, texts out. A device runs it whole or step by step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from app.contract import Array
from app.models.decoders.detokenizer import BROKEN, Detokenizer, SpaceCleaner
from app.models.decoders.parameters import Bounds, Defaults, Parameters, TokenChooser
from app.models.decoders.places import Places

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel, Prefilled

TOKENS = "tokens"  # the axis of the input
STOP, LENGTH = "stop", "length"  # why a text ends: its end token or one of its stop strings; no room for more tokens


class Text:
    """A text that is being generated. `reason`: why it ended, "" before it has."""

    def __init__(self, of: TextDecoder, parameters: Parameters, start: Sequence[int], most: int, prompt: int) -> None:
        """`start`: the decoder's first tokens; `most`: how many it may add; `prompt`: how many tokens were read."""
        self.ids = list(start)  # all tokens that its decoder has read and written
        self.most = most
        self.prompt = prompt
        self.reason = ""
        self.chooser = TokenChooser(parameters, of.defaults, len(start), most)
        self.text = ""  # of the tokens that have been read
        self._detokenizer = of.detokenizer
        self._cleaner = SpaceCleaner() if of.detokenizer.cleans else None
        self._parameters = parameters
        self._start = len(start)
        self._ends = frozenset() if parameters.ignore_eos else of.defaults.ends
        self._read = self._shown = 0  # tokens whose text is in `text`, and those before its last piece
        self._sent = 0  # characters of `text`
        self._longest_stop = max(map(len, parameters.stop), default=0)

    @property
    def tokens(self) -> int:
        """How many it has written."""
        return len(self.ids) - self._start

    def add(self, token: int) -> None:
        """Its next token."""
        self.ids.append(token)
        if token in self._ends or token in self._parameters.stop_token_ids:
            self.reason = STOP
        elif self.tokens >= self.most:
            self.reason = LENGTH
        if self._parameters.stop:
            self._end_at_stop()
        elif self.reason:
            self._extend()

    def _end_at_stop(self) -> None:
        """End the text before the first of its stop strings, if it holds one now."""
        before = max(0, len(self.text) - self._longest_stop)
        self._extend()
        places = [(place, stop) for stop in self._parameters.stop if (place := self.text.find(stop, before)) >= 0]
        if places:
            place, stop = min(places)
            self.text = self.text[: place + (len(stop) if self._parameters.include_stop_str_in_output else 0)]
            self.reason = STOP

    def _extend(self) -> None:
        """Extend `text` up to the last whole character, or to the end of a text that has ended.

        A token is decoded together with those before it, because its leading space depends on them.
        """
        ids, last = self.ids[self._start :], bool(self.reason)
        if last and ids[-1] in self._parameters.stop_token_ids:
            ids.pop()
        special = self._parameters.skip_special_tokens
        before = self._detokenizer.decode(ids[self._shown : self._read], special)
        after = self._detokenizer.decode(ids[self._shown :], special)
        piece = ""
        if len(after) > len(before) and (last or not after.endswith(BROKEN)):
            piece = after[len(before) :]
            self._shown, self._read = self._read, len(ids)
        self.text += piece if self._cleaner is None else self._cleaner.clean(piece, last=last)

    def piece(self) -> str:
        """The text since the last call, without an end that may become a stop string."""
        if not self.reason:
            self._extend()
        end = len(self.text)
        if self._longest_stop and not self.reason:
            end = min(map(self._before, self._parameters.stop))
        piece, self._sent = self.text[self._sent : end], max(self._sent, end)
        return piece

    def _before(self, stop: str) -> int:
        """The length of the text without an end that may become this stop string."""
        text = self.text
        place = text.find(stop[0], max(0, len(text) - len(stop)))  # few are tried, of a stop string of any length
        while place >= 0 and not stop.startswith(text[place:]):
            place = text.find(stop[0], place + 1)
        return len(text) if place < 0 else place


class TextDecoder(nn.Module):
    """`forward` generates the texts of a whole batch; `start_all`, `decoder.reading` and `extend` do so in pieces."""

    def __init__(self, decoder: DecoderModel, detokenizer: Detokenizer, bounds: Bounds) -> None:
        super().__init__()
        self.decoder = decoder
        self.bounds = bounds
        self.defaults = Defaults(decoder.model.generation_config)
        self.detokenizer = detokenizer

    def extend(self, texts: Sequence[Text], logits: torch.Tensor) -> None:
        """Choose the next token of each text from `logits` [rows, vocabulary], and add it."""
        likeliest: list[int] = logits.argmax(-1).tolist()
        for row, (text, token) in enumerate(zip(texts, likeliest, strict=True)):
            text.add(token if text.chooser.plain else text.chooser.choose(text.ids, logits[row]))

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, *, parameters: Sequence[Mapping[str, Any]]
    ) -> tuple[Array, ...]:
        """Whole texts of `ids` [rows, longest], padded where `mask` is 0."""
        lengths = mask.sum(1).tolist()
        texts = self.start_all(ids, lengths, parameters)
        self.write(texts, self.decoder.begin(ids, lengths))
        return self.answers(texts)

    def start_all(
        self, ids: torch.Tensor, lengths: Sequence[int], parameters: Sequence[Mapping[str, Any]]
    ) -> list[Text]:
        """New texts, before their prompts are read: `ids` [rows, longest], padded behind their `lengths`.

        Each gets as many tokens as were asked for, or as there is room for.
        """
        encodes, texts = self.decoder.encodes, []
        for row, length, given in zip(ids.tolist(), lengths, parameters, strict=True):
            prompt, asked = row[:length], Parameters.read(given)
            most = min(asked.max_new_tokens or self.bounds.usual, self.bounds.room(0 if encodes else length))
            texts.append(Text(self, asked, [self.decoder.start] if encodes else prompt, most, length))
        return texts

    def write(self, texts: Sequence[Text], begun: Prefilled) -> list[int]:
        """Generate these texts; all rows run until the longest has ended. Returns the nanoseconds of each step."""
        times: list[int] = []
        columns = max(begun.written) + max(text.most for text in texts)
        places: Places[Text] = Places(self.decoder, len(texts), columns, max(begun.has_read))
        rows = places.begin(texts, begun, [])
        while not all(text.reason for text in texts):
            before = time.perf_counter_ns()
            logits = places.step(rows, [text.ids[-1] for text in texts])
            places.stepped(rows)
            left = [row for row, text in enumerate(texts) if not text.reason]
            self.extend([texts[row] for row in left], logits[left])
            times.append(time.perf_counter_ns() - before)
        return times

    @staticmethod
    def answers(texts: Sequence[Text]) -> tuple[Array, ...]:
        """The outputs of rows that have ended, in the order of `tasks.task_specs.WRITTEN`."""
        return (
            np.array([text.text.encode() for text in texts], object),
            np.array([text.reason.encode() for text in texts], object),
            np.array([text.prompt for text in texts], np.int64),
            np.array([text.tokens for text in texts], np.int64),
        )
