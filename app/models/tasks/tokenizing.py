"""Tokenizers behind one set of methods: those of the tokenizers library, or transformers' in Python for models without
a fast one, such as Marian, which uses sentencepiece. And texts that a request wants cut, to other lengths than the
tokenizer itself is set to, which is shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from app.contract import TextCut


class TokenIds(NamedTuple):
    """A text as tokens, where little more is known of them: with fields of the tokenizers library's encodings."""

    ids: list[int]
    type_ids: Sequence[int]
    special_tokens_mask: Sequence[int] = ()
    tokens: Sequence[str] = ()
    offsets: Sequence[tuple[int, int]] = ()

    def __len__(self) -> int:
        return len(self.ids)


class SlowTokenizer:
    """A Python tokenizer with the methods of the tokenizers library that are used here. Threads may share it."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer`: transformers' own."""
        self._tokenizer = tokenizer
        self._most: int | None = None

    def copy(self) -> SlowTokenizer:
        """One with truncation of its own."""
        return SlowTokenizer(self._tokenizer)

    def no_padding(self) -> None:
        """It never pads."""

    def no_truncation(self) -> None:
        self._most = None

    def enable_truncation(self, most: int, direction: str | None = None) -> None:
        """Cut texts on that side, by default the tokenizer's own."""
        self._most = most

    def encode_batch(self, texts: Sequence[Any], add_special_tokens: bool = True) -> list[TokenIds]:
        """Encode single texts: tasks that read pairs do not use slow tokenizers."""
        return [self._encoded(text, add_special_tokens) for text in texts]

    def _encoded(self, text: str, special: bool) -> TokenIds:
        found = self._tokenizer(
            text, add_special_tokens=special, truncation=self._most is not None, max_length=self._most, verbose=False
        )
        return TokenIds(found["input_ids"], found.get("token_type_ids") or [0] * len(found["input_ids"]))

    def num_special_tokens_to_add(self, pair: bool) -> int:
        return int(self._tokenizer.num_special_tokens_to_add(pair))

    def cut(self, text: str, most: int, left: bool, special: bool) -> TokenIds:
        """Encode a text and cut it to so many tokens; `special`: then add the special ones."""
        ids = self._tokenizer.encode(text, add_special_tokens=False, verbose=False)
        ids = ids[-most:] if left else ids[:most]
        if special:
            ids = self._tokenizer.build_inputs_with_special_tokens(ids)
        return TokenIds(ids, [0] * len(ids))

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens, before spaces are removed (`Detokenizer.cleans`)."""
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
        )
        return text


def backend_of(tokenizer: Any) -> Any:
    """The backend of transformers' tokenizer: the tokenizers library's, or a SlowTokenizer."""
    return tokenizer.backend_tokenizer if tokenizer.is_fast else SlowTokenizer(tokenizer)


def copied(backend: Any) -> Any:
    """A copy with its own padding and truncation."""
    return backend.copy() if isinstance(backend, SlowTokenizer) else type(backend).from_str(backend.to_str())


class CutTooShort(Exception):
    """Not even the special tokens fit. `least`: how many tokens there must be at least."""

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.least = least


def encode_cut(backend: Any, text: Any, cut: TextCut, most: int, left: bool, *, special: bool = True) -> Any:
    """The encoding of a text or pair, cut to `most` tokens, `special` ones included; of a pair the longer text is cut.

    `backend`: a tokenizer that does not cut by itself. `left`: at the beginning. With `cut.last` only the last text is
    cut, to `cut.most` tokens without special ones. Raises CutTooShort.
    """
    texts = text if isinstance(text, tuple) else (text,)
    added = backend.num_special_tokens_to_add(len(texts) > 1) if special else 0
    room = most - added
    if room < 1:
        raise CutTooShort(added + 1)
    if isinstance(backend, SlowTokenizer):
        return backend.cut(text, room, left, special)
    parts = backend.encode_batch(list(texts), add_special_tokens=False)
    lengths = [len(part) for part in parts]
    if cut.last:
        lengths[-1] = min(lengths[-1], cut.most or room)
    else:
        lengths = _shortened(lengths, room)
    for part, length in zip(parts, lengths, strict=True):
        if length < len(part):
            part.truncate(length, direction="left" if left else "right")
    return backend.post_process(*parts, *[None] * (2 - len(parts)), special)


def _shortened(lengths: list[int], room: int) -> list[int]:
    """The lengths, the longer one shortened until they fit."""
    if sum(lengths) <= room:
        return lengths
    if len(lengths) == 1:
        return [room]
    shorter = min(*lengths, room // 2)
    longer = room - shorter
    return [shorter, longer] if lengths[0] <= lengths[1] else [longer, shorter]
