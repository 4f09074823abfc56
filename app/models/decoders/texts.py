"""A decoder with its tokenizer: rows of token ids in, texts out. A device runs it whole or step by step."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from app.contract import Array
from app.models.decoders.parameters import Defaults, Parameters
from app.models.decoders.sampling import TokenChooser

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel, Prefilled
    from app.models.decoders.slabs import SlabCache

TOKENS = "tokens"  # the axis of the input
_BROKEN = "\ufffd"  # the decoded text of an incomplete character
STOP, LENGTH = "stop", "length"  # why a text ends: its end token or one of its stop strings; as many tokens as asked


class Text:
    """A text that is being generated. `reason`: why it ended, "" before it has."""

    def __init__(self, tokenizer: Any, chooser: TokenChooser, prompt: int, most: int, stops: Sequence[str]) -> None:
        """`prompt`: how many tokens were read; `most`: how many to generate."""
        self.chooser = chooser
        self.prompt = prompt
        self.most = most
        self.reason = ""
        self.text = ""  # of the tokens that have been read
        self._tokenizer = tokenizer
        self._read = self._shown = 0  # tokens whose text is in `text`, and those before its last piece
        self._cut = False
        self._sent = 0  # characters of `text`
        self._stops = stops
        self._longest_stop = max(map(len, stops), default=0)

    @property
    def tokens(self) -> int:
        return self.chooser.count

    @property
    def last(self) -> int:
        """The token to read next."""
        return self.chooser.ids[-1]

    def add(self, token: int, ends: frozenset[int]) -> None:
        """Its next token."""
        self.chooser.ids.append(token)
        if token in ends or (self._stops and self._stopped()):
            self.reason = STOP
        elif self.tokens >= self.most:
            self.reason = LENGTH
        if self.reason:
            self.read(whole=True)

    def read(self, *, whole: bool = False) -> None:
        """Extend `text` up to the last whole character: one may consist of several tokens.

        A token is decoded together with those before it, because its leading space depends on them. `whole`: no more
        tokens follow.
        """
        if whole and self._cut:
            return
        ids = self.chooser.written
        before = self._tokenizer.decode(ids[self._shown : self._read])
        after = self._tokenizer.decode(ids[self._shown :])
        if len(after) > len(before) and (whole or not after.endswith(_BROKEN)):
            self.text += after[len(before) :]
            self._shown, self._read = self._read, len(ids)

    def _stopped(self) -> bool:
        """Whether the text now holds one of its stop strings; if so, cut it before the first."""
        before = max(0, len(self.text) - self._longest_stop)
        self.read()
        places = [place for stop in self._stops if (place := self.text.find(stop, before)) >= 0]
        if places:
            self.text = self.text[: min(places)]
            self._cut = True
        return bool(places)

    def piece(self) -> str:
        """The text since the last call, without an end that may become a stop string."""
        if not self.reason:
            self.read()
        end = len(self.text)
        if self._stops and not self.reason:
            held = range(min(self._longest_stop - 1, end), 0, -1)
            end -= next((n for n in held if any(stop.startswith(self.text[-n:]) for stop in self._stops)), 0)
        piece, self._sent = self.text[self._sent : end], max(self._sent, end)
        return piece


class TextDecoder(nn.Module):
    """`forward` generates the texts of a whole batch; `start`, `decoder.reading` and `step` do so in pieces.

    `max_tokens`: of a prompt, or of an encoder's input; `most`: tokens of a text.
    """

    def __init__(self, decoder: DecoderModel, tokenizer: Any, max_tokens: int, most: int) -> None:
        """`tokenizer`: of the tokenizers library."""
        super().__init__()
        self.decoder = decoder
        self.max_tokens = max_tokens
        self.most = most
        self.defaults = Defaults.of(decoder.model.generation_config, most, encodes=decoder.encodes)
        self._tokenizer = tokenizer

    def read_parameters(self, given: Mapping[str, Any] | None) -> Parameters:
        """Raises BadRequest naming the parameter."""
        return Parameters.read(given, self.most)

    def start(self, ids: Sequence[int], given: Mapping[str, Any] | None) -> Text:
        """A new text, before its prompt is read."""
        parameters = self.read_parameters(given)
        most = parameters.max_new_tokens or self.defaults.max_new_tokens
        prompt = [self.decoder.start] if self.decoder.encodes else ids
        chooser = TokenChooser(parameters, self.defaults, prompt, most)
        return Text(self._tokenizer, chooser, len(ids), most, parameters.stop)

    def step(
        self, tokens: Sequence[int], cache: SlabCache, end: int, written: Sequence[int], read: Sequence[int]
    ) -> torch.Tensor:
        """See DecoderModel."""
        return self.decoder.step(torch.tensor(tokens, device=self.decoder.device), cache, end, written, read)

    def extend(self, texts: Sequence[Text], logits: torch.Tensor) -> None:
        """Choose the next token of each text from `logits` [rows, vocabulary], and add it."""
        likeliest: list[int] = logits.argmax(-1).tolist()
        for row, (text, token) in enumerate(zip(texts, likeliest, strict=True)):
            text.add(token if text.chooser.plain else text.chooser.choose(logits[row]), self.defaults.ends)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, *, parameters: Sequence[Mapping[str, Any]]
    ) -> tuple[Array, ...]:
        """Whole texts of `ids` [rows, longest], padded where `mask` is 0."""
        texts, begun = self.begin(ids, mask.sum(1).tolist(), parameters)
        self.write(texts, begun)
        return self.answers(texts)

    def begin(
        self, ids: torch.Tensor, lengths: Sequence[int], parameters: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Text], Prefilled]:
        """Start the texts of a batch and prefill their rows."""
        rows = [row[:length] for row, length in zip(ids.tolist(), lengths, strict=True)]
        texts = [self.start(row, given) for row, given in zip(rows, parameters, strict=True)]
        return texts, self.decoder.begin(ids, lengths)

    def write(self, texts: Sequence[Text], begun: Prefilled) -> list[int]:
        """Generate these texts; all rows run until the longest has ended. Returns the nanoseconds of each step."""
        times: list[int] = []
        end, written = max(begun.written), begun.written
        own = self.decoder.slab(len(texts), end + max(text.most for text in texts))
        if begun.own is not None:
            own.values[..., :end, :] = begun.own.values
        cache = self.decoder.cache(own, begun.read)
        while not all(text.reason for text in texts):
            before = time.perf_counter_ns()
            logits = self.step([text.last for text in texts], cache, end, written, begun.has_read)
            end, written = end + 1, [length + 1 for length in written]
            left = [row for row, text in enumerate(texts) if not text.reason]
            writing = [texts[row] for row in left]
            self.extend(writing, logits[left])
            times.append(time.perf_counter_ns() - before)
        return times

    @staticmethod
    def answers(texts: Sequence[Text]) -> tuple[Array, ...]:
        """The outputs of rows that have ended, in the order of `tasks.task_specs.WRITTEN`."""
        return (
            _objects([text.text for text in texts]),
            _objects([text.reason for text in texts]),
            np.array([text.prompt for text in texts], np.int64),
            np.array([text.tokens for text in texts], np.int64),
        )


def _objects(texts: Sequence[str]) -> Array:
    values: Array = np.empty(len(texts), object)
    values[:] = [text.encode() for text in texts]
    return values
