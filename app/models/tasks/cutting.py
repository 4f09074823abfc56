"""Tokenizes texts that a request wants cut: to other lengths than the tokenizer itself is set to, which is shared."""

from __future__ import annotations

from typing import Any

from app.contract import TextCut
from app.models.tasks.slow_tokenizer import SlowTokenizer


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
