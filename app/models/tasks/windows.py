"""Reads texts that are too long for a model in overlapping windows, each a row, and joins what it says of tokens.

A token in two windows is taken from the one that shows more of what is around it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from app.contract import Answers, Array, Translated
from app.models.tasks.task_answers import Outputs
from app.models.tasks.text_readers import CallTexts, TextReader
from app.models.tasks.tokenizing import TokenIds

_STRIDE = 128  # tokens that two windows share at most, as for questions


class TextWindow(NamedTuple):
    """A row of the model. Its `length` tokens from `column` on answer for those of the text from `first` on."""

    first: int
    column: int
    length: int


@dataclass(frozen=True, slots=True)
class WindowedTexts:
    """The windows of each text, and what the answer needs of the whole texts."""

    windows: Sequence[Sequence[TextWindow]]
    kept: Any


class WindowReader(TextReader):
    """Texts of any length, unless they are to be cut; the note is a WindowedTexts."""

    windows = True

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        rows: list[Any] = []
        windows = []
        found = self.not_empty(call, found)
        for one in found:
            if len(one) <= self.reading.most:
                rows.append(one)
                windows.append([TextWindow(0, 0, len(one))])
            else:
                parts, own = _split(one, self.reading.most)
                rows += parts
                windows.append(own)
        read = super().call_rows(call, rows) if len(rows) == len(found) else self.stacked(rows, self.kept(call, found))
        return replace(read, note=WindowedTexts(windows, read.note))


class WindowAnswers(Answers):
    """The answers of `inner` to whole texts, from values of each token [rows, tokens, size] of their windows."""

    quick = False

    def __init__(self, inner: Answers) -> None:
        super().__init__(inner.outputs)
        self._inner = inner
        self.own_axes = inner.own_axes
        self.present = inner.present

    def with_parameters(self, note: WindowedTexts, parameters: Mapping[str, Any]) -> WindowedTexts:
        return replace(note, kept=self._inner.with_parameters(note.kept, parameters))

    def answer(self, outputs: Sequence[Array], note: WindowedTexts) -> Outputs:
        (values,) = outputs
        if len(values) > len(note.windows):
            longest = max(own[-1].first + own[-1].length for own in note.windows)
            whole = np.zeros((len(note.windows), longest, values.shape[-1]), values.dtype)
            rows = iter(values)
            for text, own in zip(whole, note.windows, strict=True):
                for first, column, length in own:
                    text[first : first + length] = next(rows)[column : column + length]
            values = whole
        return self._inner.answer([values], note.kept)


def _split(one: Any, most: int) -> tuple[list[TokenIds], list[TextWindow]]:
    """The windows of an encoding, each with the special tokens at its ends."""
    special = one.special_tokens_mask
    lead = next((place for place, is_special in enumerate(special) if not is_special), 0)
    trail = next((place for place, is_special in enumerate(reversed(special)) if not is_special), 0)
    length, room = len(one) - lead - trail, most - lead - trail
    stride = min(room // 2, _STRIDE)
    rows, windows = [], []
    for start in range(0, length - stride, room - stride):
        stop = min(start + room, length)
        rows.append(TokenIds(*([*part[:lead], *part[lead + start : lead + stop], *part[len(one) - trail :]]
                               for part in (one.ids, one.type_ids))))  # fmt: skip
        begin = start + stride // 2 if start else -lead  # what it does not answer for, the window before does
        end = stop - (stride - stride // 2) if stop < length else length + trail
        windows.append(TextWindow(lead + begin, lead + begin - start, end - begin))
    return rows, windows
