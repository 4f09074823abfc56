"""From tokens to text: whole, or as the tokens come.

Three things make this more than `decode`. A character may be several tokens, so the end of a text may be half of one.
A tokenizer with byte fallback (Llama's `<0xE2>`) decodes a run of bytes as all characters or none: here those that are
complete are kept. And some tokenizers remove spaces afterwards (`clean_up_tokenization_spaces`), which changes text
that came before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

BROKEN = "\ufffd"  # the decoded text of a byte that belongs to no character, or to one whose other bytes are missing
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_UNDECODED = re.compile("[\udc80-\udcff]")  # what "surrogateescape" makes of such a byte
#: What transformers' clean_up_tokenization replaces, in its order, by the same without its spaces.
_SPACED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
_BEGUN = tuple({spaced[:length] for spaced in _SPACED for length in range(1, len(spaced))})


class Detokenizer:
    """`cleans`: whether a SpaceCleaner is to remove spaces from what `decode` returns. Threads may share it."""

    def __init__(self, tokenizer: Any, backend: Any) -> None:
        """`tokenizer`: transformers'; `backend`: of the tokenizers library, or a SlowTokenizer."""
        self._backend = backend
        self._special: frozenset[int] | None = None  # tokens, of a tokenizer that falls back to bytes
        self.cleans = bool(tokenizer.clean_up_tokenization_spaces)
        if not tokenizer.is_fast:
            return
        if type(backend.model).__name__ == "BPE":  # as transformers: of a BPE's text they would be real spaces
            name = "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
            self.cleans = self.cleans and bool(getattr(tokenizer, name, False))
        if backend.decoder is not None and backend.decoder.decode(["<0x41>"]) == "A":
            added = backend.get_added_tokens_decoder()
            self._special = frozenset(number for number, token in added.items() if token.special)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of these tokens, before spaces are removed; BROKEN for each byte that is no character."""
        if self._special is None:
            return str(self._backend.decode(ids, skip_special_tokens=skip_special))
        if skip_special:
            ids = [one for one in ids if one not in self._special]
        tokens = map(self._backend.id_to_token, ids)
        return str(self._backend.decoder.decode([*_characters(token for token in tokens if token is not None)]))


def _characters(tokens: Iterable[str]) -> Iterator[str]:
    """The tokens, with the characters of each run of bytes in their place."""
    run = bytearray()
    for token in tokens:
        if (found := _BYTE.fullmatch(token)) is not None:
            run.append(int(found[1], 16))
            continue
        yield from _decoded(run)
        run.clear()
        yield token
    yield from _decoded(run)


def _decoded(run: bytearray) -> str:
    return _UNDECODED.sub(BROKEN, run.decode("utf-8", "surrogateescape")) if run else ""


class SpaceCleaner:
    """Removes spaces as transformers' clean_up_tokenization does, from a text that comes in pieces.

    The end of a piece is kept while it may be the beginning of something to replace.
    """

    def __init__(self) -> None:
        self._kept = ""

    def clean(self, piece: str, *, last: bool) -> str:
        """What is now known of the cleaned text. `last`: no more pieces follow."""
        text = self._kept + piece
        end = len(text)
        while not last and end and (_begins(text[:end]) or _begins(_cleaned(text[:end]))):
            end -= 1
        self._kept = text[end:]
        return _cleaned(text[:end])


def _cleaned(text: str) -> str:
    for spaced in _SPACED:
        text = text.replace(spaced, spaced.strip(" "))
    return text


def _begins(text: str) -> bool:
    """Whether the text ends with the beginning of something to replace."""
    return text.endswith(_BEGUN)
