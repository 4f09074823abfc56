"""Texts that are too long for a model, in overlapping windows, each a row of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from app.contract import Array, Translated
from app.models.tasks.text_readers import CallTexts, TextReader
from app.models.tasks.tokenizing import WindowPlaces, shown

_STRIDE = 128  # tokens that two windows share at most, as in transformers' pipeline


class LongText(NamedTuple):
    """A text, of a pair the last, its encoding, and the windows of that."""

    text: str
    encoding: Any
    windows: Sequence[WindowPlaces]


class InWindows(NamedTuple):
    """The note of a call: its texts, and what the parameters of the request ask of the answer, if anything."""

    texts: Sequence[LongText]
    option: Any = None


class WindowReader(TextReader):
    """Texts of any length, or pairs whose last text may have any, in windows; its notes are InWindows."""

    windows = True

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        texts = [
            LongText(text[-1] if isinstance(text, tuple) else text, one, windows_of(one, self.reading.most))
            for one, text in zip(found, call.texts, strict=True)
        ]
        return self.stacked([row for each in texts for row in shown(each.encoding, each.windows)], InWindows(texts))


def stride_of(most: int) -> int:
    """How many tokens two windows of `most` tokens share."""
    return min(most // 2, _STRIDE)


def windows_of(one: Any, most: int) -> list[WindowPlaces]:
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


def joined(values: Array, windows: Sequence[Sequence[WindowPlaces]]) -> list[Array]:
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
