"""fill-mask: a text with tokens left out, and what fits there best."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from app.contract import Array, Translated
from app.errors import BadText
from app.models.tasks import faces
from app.models.tasks.answers import Answers, Outputs, best_first
from app.models.tasks.heads import MOST_MASKS
from app.models.tasks.texts import CallTexts, TextReader


def mask_places(mask: int, one: Any) -> Array:
    """Where the masks of an encoding are."""
    return np.flatnonzero(np.array(one.ids) == mask)


class MaskReader(TextReader):
    """Its notes are the places of each row's masks."""

    def call_rows(self, call: CallTexts, found: Sequence[Any]) -> Translated:
        """Raises BadText for a text without a mask, too."""
        read = super().call_rows(call, found)
        for row, places in enumerate(read.note):
            if not 1 <= len(places) <= MOST_MASKS:
                where = row if len(read.note) > 1 else None
                raise BadText("text", where, f"expected 1 to {MOST_MASKS} masks, got {len(places)}")
        return read


class Masks(Answers):
    """Ids and scores [rows, tokens, top] to those of each mask, as text. `decode`: the text of a list of ids."""

    own_axes = (faces.MASKS,)
    quick = False

    def __init__(self, decode: Callable[[list[int]], str], top: int) -> None:
        super().__init__(faces.masks(top))
        self._decode = decode
        self._top = top

    def answer(self, outputs: Sequence[Array], note: Sequence[Array]) -> Outputs:
        ids, scores = outputs
        lengths = [len(places) for places in note]
        shape = (len(note), max(lengths), self._top)
        texts, best = np.full(shape, b"", object), np.zeros(shape, np.float32)
        for row, (places, length) in enumerate(zip(note, lengths, strict=True)):
            texts[row, :length] = [[self._decode([one]).encode() for one in each] for each in ids[row, places].tolist()]
            best[row, :length] = scores[row, places]
        return [texts, best], lengths

    def present(self, outputs: Mapping[str, Array]) -> Any:
        each = zip(outputs["tokens"], outputs["scores"], strict=True)
        return {"masks": [best_first("token", tokens, scores) for tokens, scores in each]}
