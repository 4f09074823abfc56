"""Texts that are too long for a model, in overlapping windows, each a row of the model.

A token in two windows is taken from the one that shows more of what is around it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.contract import Array
from app.models.tasks.tokenizing import TokenIds

_STRIDE = 128  # tokens that two windows share at most, as for questions


class TextWindow(NamedTuple):
    """A row of the model. Its `length` tokens from `column` on answer for those of the text from `first` on."""

    first: int
    column: int
    length: int


def windows_of(one: Any, most: int) -> list[tuple[TextWindow, Any]]:
    """The windows of an encoding and their rows, each of at most `most` tokens with the special ones at its ends."""
    if len(one) <= most:
        return [(TextWindow(0, 0, len(one)), one)]
    special = one.special_tokens_mask
    lead = next((place for place, is_special in enumerate(special) if not is_special), 0)
    trail = next((place for place, is_special in enumerate(reversed(special)) if not is_special), 0)
    length, room = len(one) - lead - trail, most - lead - trail
    stride = min(room // 2, _STRIDE)
    windows = []
    for start in range(0, length - stride, room - stride):
        stop = min(start + room, length)
        row = TokenIds(*([*part[:lead], *part[lead + start : lead + stop], *part[len(one) - trail :]]
                         for part in (one.ids, one.type_ids)))  # fmt: skip
        begin = start + stride // 2 if start else -lead  # what it does not answer for, the window before does
        end = stop - (stride - stride // 2) if stop < length else length + trail
        windows.append((TextWindow(lead + begin, lead + begin - start, end - begin), row))
    return windows


def joined(values: Array, windows: Sequence[Sequence[TextWindow]]) -> Array:
    """Values of each token of whole texts [texts, tokens, size], from those of their windows [rows, tokens, size]."""
    if len(values) == len(windows):
        return values
    longest = max(own[-1].first + own[-1].length for own in windows)
    whole = np.zeros((len(windows), longest, values.shape[-1]), values.dtype)
    rows = iter(values)
    for text, own in zip(whole, windows, strict=True):
        for first, column, length in own:
            text[first : first + length] = next(rows)[column : column + length]
    return whole
