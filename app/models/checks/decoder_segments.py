"""The steps of a decoder as a segment to check, while other rows begin and end between them.

A few rows share places as in a server: one begins, two join it later, the first leaves, the last one moves into its
place, and another joins. The logits of each step are compared with those of the model's own forward for all tokens of
the row, without a cache. So this also finds an architecture whose steps differ from its forward. The slabs hold noise
at first, as they do after earlier rows.

The decoder runs on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from app.contract import Model, SampleRow
from app.models.checks.row_check import Cause
from app.models.checks.segment_check import LoneRow, Segment, Shared, spec_of
from app.models.decoders.places import PlacedText, Places
from app.models.decoders.texts import TextDecoder

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel

_LENGTHS = (16, 12, 8, 4)  # tokens that each row reads, at most: long ones show nothing else
_PLACES = 3
_STEPS = 2  # between two changes of the rows; a row sees at most three changes


def decoder_segments(model: Model, rows: Sequence[SampleRow]) -> list[Segment]:
    """All steps of a few rows. Raises what the decoder raises."""
    assert isinstance(model.call, TextDecoder)
    shared: list[Shared] = []
    again: list[Shared] = []
    for text in _run(model.call, [row.arrays[0].tolist() for row in rows]):
        (alone,) = text.alone()
        lone = [LoneRow(rows[0], (), [made[None]]) for made in alone]
        shared.append(Shared(lone, partial(list, [torch.cat(text.logits)]), text.how, Cause.JOINS))
        again.append(Shared(lone, text.alone, ["again"] * len(lone)))
    return [Segment([spec_of("logits", text.logits[0])], shared, again, once="by its own forward")]


@dataclass(eq=False)
class _Text:
    """`read`: the tokens that were sent; `ids`: all tokens that its decoder has read and written. Of each step the
    `logits` [1, vocabulary], and in words how it was made."""

    decoder: DecoderModel
    read: list[int]
    ids: list[int]
    logits: list[torch.Tensor] = field(default_factory=list)
    how: list[str] = field(default_factory=list)

    def alone(self) -> list[torch.Tensor]:
        """The logits of its steps, from the model's own forward: one tensor [steps, vocabulary]."""
        ids = torch.tensor([self.read]), torch.tensor([self.ids[:-1]])
        logits = self.decoder.whole(*(each.to(self.decoder.device) for each in ids))
        return [logits[-len(self.logits) :]]


def _run(call: TextDecoder, rows: Sequence[list[int]]) -> list[_Text]:
    """Some texts, written in company that changes."""
    room = max(1, (call.bounds.both or call.bounds.prompt + 3 * _STEPS) - 3 * _STEPS)
    waiting = [row[: min(most, room)] for row, most in zip(cycle(rows), _LENGTHS, strict=False)]
    walk = _Walk(call.decoder, max(map(len, waiting)))
    walk.join(waiting[:1])
    walk.step()
    first = walk.rows[0]
    walk.join(waiting[1:3])
    walk.step()
    walk.leave(first)
    walk.step()
    walk.join(waiting[3:])
    walk.step()
    return [first.text, *(row.text for row in walk.rows)]


class _Walk:
    """Places, and the rows at the first of them."""

    def __init__(self, decoder: DecoderModel, longest: int) -> None:
        self._decoder = decoder
        columns = longest + len(_LENGTHS) * _STEPS
        self._places: Places[_Text] = Places(decoder, _PLACES, columns, longest if decoder.encodes else 0)
        for slab in (self._places.own, self._places.read):
            if slab is not None:
                slab.values.normal_()
        self.rows: list[PlacedText[_Text]] = []

    def join(self, new: Sequence[list[int]]) -> None:
        """Prefill rows in one batch, and give them the next places."""
        decoder, longest = self._decoder, max(map(len, new))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in new], device=decoder.device)
        begun = decoder.begin(ids, list(map(len, new)))
        texts = [_Text(decoder, row, [decoder.start] if decoder.encodes else list(row)) for row in new]
        self.rows += self._places.begin(texts, begun, self.rows)

    def leave(self, row: PlacedText[_Text]) -> None:
        """A row leaves, and the last one moves into its place."""
        self._places.leave(row)
        self.rows = self._places.arrange([other for other in self.rows if other is not row], 0)

    def step(self) -> None:
        """Some steps of all rows; the next token of each is the likeliest."""
        places, rows = self._places, self.rows
        for _ in range(_STEPS):
            logits = places.step(rows, [row.text.ids[-1] for row in rows])
            places.stepped(rows)
            for place, row in enumerate(rows):
                row.text.logits.append(logits[place : place + 1].clone())
                row.text.ids.append(int(logits[place].argmax()))
                row.text.how.append(f"at step {len(row.text.logits)}, beside {len(rows) - 1} others")
