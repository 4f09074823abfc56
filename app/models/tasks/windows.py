"""Texts that are too long for a model, in overlapping windows, each a row of the model.

A window is a list of places: which tokens of the whole encoding it shows, in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from app.contract import Array
from app.models.tasks.tokenizing import TokenIds

_STRIDE = 128  # tokens that two windows share at most, as in transformers' pipeline

Window = Sequence[int]


def stride_of(most: int) -> int:
    """How many tokens two windows of `most` tokens share."""
    return min(most // 2, _STRIDE)


def windows_of(one: Any, most: int) -> list[Window]:
    """The windows of an encoding of a text, or of a pair whose last text is too long, of at most `most` tokens.

    Each has all tokens before the text, such as special ones, and all behind it.
    """
    if len(one) <= most:
        return [range(len(one))]
    sequences = one.sequence_ids
    last = max(number for number in sequences if number is not None)
    lead, trail = sequences.index(last), sequences[::-1].index(last)
    end, room = len(one) - trail, most - lead - trail
    step = max(1, room - stride_of(most))
    begins = range(lead, end - (room - step), step)
    return [[*range(lead), *range(begin, min(begin + room, end)), *range(end, len(one))] for begin in begins]


def rows_of(one: Any, windows: Sequence[Window]) -> list[TokenIds]:
    """The tokens that each window shows."""
    ids, type_ids = one.ids, one.type_ids  # an encoding makes such a list of all its tokens whenever it is asked
    return [TokenIds([ids[at] for at in window], [type_ids[at] for at in window]) for window in windows]


def joined(values: Array, windows: Sequence[Sequence[Window]]) -> list[Array]:
    """Values of each token of whole texts [tokens, size], from those of their windows [rows, tokens, size].

    A token in two windows is taken from the one in which it is further from an end.
    """
    whole, rows = [], iter(values)
    for own in windows:
        length = own[-1][-1] + 1
        text, furthest = np.zeros((length, values.shape[-1]), values.dtype), np.full(length, -1)
        for window in own:
            row, places = next(rows)[: len(window)], np.array(window)
            from_end = np.minimum(np.arange(len(window)), np.arange(len(window))[::-1])
            better = from_end > furthest[places]
            text[places[better]], furthest[places[better]] = row[better], from_end[better]
        whole.append(text)
    return whole
