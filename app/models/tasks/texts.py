"""Texts to the tensors of a transformers model, by its fast tokenizer. Any number of threads may tokenize at once.

The tokenizer of the Rust library is called itself: transformers' own call sets padding and truncation on it each time,
which two threads must not do at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from app.contract import Array, SampleRow, TensorSpec, Translated
from app.errors import BadRequest, ConfigError
from app.models.tasks import faces
from app.models.tasks.answers import Tokens
from app.models.tasks.heads import MASK

TOKENS = "tokens"  # the variable axis
#: Characters of a token, on average over a text that may be one: what is longer is not even tokenized, since the time
#: that takes grows with its length.
_LONGEST_TOKEN = 256
_UNSAID = 512  # tokens, where neither model nor tokenizer has a bound
_NONE = 1 << 31  # what a tokenizer without a bound has is larger
_SAMPLE_LENGTH = 16  # tokens of the rows to try a model with, but for the last, which has half
_EXAMPLE = "What a fine day to sit outside and read a book."
_SAMPLE_TEXTS = (
    "The ferry was late again, so we walked along the harbour and counted 27 boats before lunch.",
    "Nobody at the office knew why; it rained in Bergen, and Anna wrote home that all was well.",
    "It would be quicker if it did not wait, and cheaper if it waited longer: that is the trade.",
    "In 1997 the old bridge was closed for a year, which nobody who lived here has forgotten yet.",
    "What a fine day to sit outside and read a book about queues, batches and other small things.",
)


class TextReader:
    """Texts, one a row, to `input_ids` and, where the model takes them, `token_type_ids`; the server makes the mask.

    `inputs` are the model's, in order. A text of more than `most` tokens, special ones counted, is refused, or cut
    where `truncate` says so. `keep` keeps what Tags needs of the tokens.
    """

    sent = (faces.TEXT,)

    def __init__(self, tokenizer: Any, *, words: int, most: int, truncate: bool, pad: int, keep: bool) -> None:
        """`tokenizer`: transformers' fast one; `words`: how many tokens the model knows; `pad`: the id of padding."""
        backend = tokenizer.backend_tokenizer
        backend.no_padding()
        backend.no_truncation()
        self._samples_from = type(backend).from_str(backend.to_str())
        self._longest = most * _LONGEST_TOKEN
        self._truncate = truncate
        if truncate:
            backend.enable_truncation(most, direction=tokenizer.truncation_side)
            if tokenizer.truncation_side == "left":
                self._longest = sys.maxsize  # offsets count from the beginning, so that is never cut off
        self._encode = backend.encode_batch
        self._most = most
        self._keep = keep
        self._pad = pad
        self._types = "token_type_ids" in tokenizer.model_input_names
        self._pad_type = int(tokenizer.pad_token_type_id)
        self.inputs = self._inputs(words)

    def _inputs(self, words: int) -> tuple[TensorSpec, ...]:
        axes, bounds = (TOKENS,), (self._most,)
        ids = TensorSpec("input_ids", "INT64", (-1,), axes, bounds, self._pad, minimum=0, maximum=words - 1)
        mask = TensorSpec(MASK, "INT64", (-1,), axes, bounds, mask_of="input_ids")
        if not self._types:
            return ids, mask
        return ids, TensorSpec("token_type_ids", "INT64", (-1,), axes, bounds, self._pad_type), mask

    def read(self, arrays: Sequence[Array]) -> Translated:
        """Raises BadRequest for bytes that are no UTF-8, and for a text without tokens or with too many."""
        values = arrays[0].reshape(-1)
        found = self._encode([self._text(value, _row(row, len(values))) for row, value in enumerate(values)])
        lengths = [len(one) for one in found]
        for row, length in enumerate(lengths):
            if not 1 <= length <= self._most:
                expected = "at least one token" if not length else f"at most {self._most} tokens"
                raise BadRequest(f"text{_row(row, len(lengths))}: expected {expected}, got {length}")
        longest = max(lengths)
        read = [_stacked([one.ids for one in found], longest, self._pad)]
        if self._types:
            read.append(_stacked([one.type_ids for one in found], longest, self._pad_type))
        own = {TOKENS: lengths} if len(lengths) > 1 else None
        return Translated(read, {TOKENS: longest}, own, [_tokens(one) for one in found] if self._keep else None)

    def _text(self, value: Any, where: str) -> str:
        """The text of a row, cut where it may be."""
        try:
            text = value.decode() if isinstance(value, bytes) else str(value)
        except UnicodeDecodeError as error:
            wrong = f"{error.object[error.start]:#04x}"
            raise BadRequest(f"text{where}: expected UTF-8, got byte {wrong} in it") from None
        if len(text) <= self._longest:
            return text
        if not self._truncate:
            raise BadRequest(f"text{where}: expected at most {self._most} tokens, got {len(text)} characters")
        return text[: self._longest]

    def example(self) -> SampleRow | None:
        """As many words of a short sentence as the model has room for. None: it reads none of them."""
        words = _EXAMPLE.split()
        for count in range(len(words), 0, -1):
            row: Array = np.array(" ".join(words[:count]).encode(), object)
            with suppress(BadRequest):
                self.read([row])
                return SampleRow((row,))
        return None

    def samples(self) -> tuple[SampleRow, ...]:
        """Rows to try the model with: real text, since some models look for the special tokens of one."""
        tokenizer, rows = self._samples_from, []
        length = min(_SAMPLE_LENGTH, self._most)
        for text in _SAMPLE_TEXTS:
            tokenizer.enable_truncation(length if text is not _SAMPLE_TEXTS[-1] else max(1, length // 2))
            one = tokenizer.encode_batch([text])[0]
            if len(one):
                values = [one.ids, one.type_ids] if self._types else [one.ids]
                rows.append(SampleRow(tuple(np.array(each, np.int64) for each in values), {TOKENS: len(one)}))
        return tuple(rows)


def most_tokens(positions: int | None, tokenizer: Any, own: int | None, asked: int | None) -> int:
    """How many tokens a text may have: `asked`, or the least of the model's `positions`, the tokenizer's bound and the
    model's `own` files. Raises ConfigError where more are asked for than there are positions.
    """
    if asked is not None:
        special = tokenizer.num_special_tokens_to_add()
        if asked <= special:
            raise ConfigError(
                f"task_options.max_tokens: expected more than the {special} special tokens of a text, got {asked}"
            )
        if positions is not None and asked > positions:
            raise ConfigError(
                f"task_options.max_tokens: expected at most the model's {positions} positions, got {asked}"
            )
        return asked
    bounds = [bound for bound in (positions, own, tokenizer.model_max_length) if bound is not None and bound < _NONE]
    return min(bounds, default=_UNSAID)


def _row(row: int, rows: int) -> str:
    return f" of row {row}" if rows > 1 else ""


def _stacked(rows: Sequence[Sequence[int]], longest: int, pad: int) -> Array:
    values: Array = np.full((len(rows), longest), pad, np.int64)
    for place, row in zip(values, rows, strict=True):
        place[: len(row)] = row
    return values


def _tokens(one: Any) -> Tokens:
    """What is not special of an encoding."""
    places = [place for place, special in enumerate(one.special_tokens_mask) if not special]
    pieces, offsets = one.tokens, one.offsets
    return Tokens(
        np.array(places, np.int64),
        [pieces[place] for place in places],
        [offsets[place][0] for place in places],
        [offsets[place][1] for place in places],
    )
