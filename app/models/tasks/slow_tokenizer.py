"""transformers' tokenizers in Python, for models whose library has no fast one: Marian's are sentencepiece models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class SlowEncoding(NamedTuple):
    """A text as tokens."""

    ids: list[int]
    type_ids: list[int]

    def __len__(self) -> int:
        return len(self.ids)


class SlowTokenizer:
    """Has those methods of the Rust library's tokenizer that reading and writing texts need. Any thread may call it."""

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

    def encode_batch(self, texts: Sequence[Any], add_special_tokens: bool = True) -> list[SlowEncoding]:
        """Of single texts; the tasks that read pairs write none."""
        return [self._encoded(text, add_special_tokens) for text in texts]

    def _encoded(self, text: str, special: bool) -> SlowEncoding:
        found = self._tokenizer(
            text, add_special_tokens=special, truncation=self._most is not None, max_length=self._most, verbose=False
        )
        return SlowEncoding(found["input_ids"], found.get("token_type_ids") or [0] * len(found["input_ids"]))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, without special ones."""
        # No spaces are taken away, since that would change what has been sent of a text.
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text


def backend_of(tokenizer: Any) -> Any:
    """What reads and writes texts for transformers' tokenizer."""
    return tokenizer.backend_tokenizer if tokenizer.is_fast else SlowTokenizer(tokenizer)


def copied(backend: Any) -> Any:
    """Another one, with padding and truncation of its own."""
    return backend.copy() if isinstance(backend, SlowTokenizer) else type(backend).from_str(backend.to_str())
