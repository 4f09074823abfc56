"""The steps of a decoder as a segment to check: rows join others that are half way, and make their last step together.

The logits of that step are compared with those of the model's own forward for all tokens of the row, without a cache.
So this also finds an architecture whose steps differ from its forward. The slabs hold noise at first, as they do after
earlier rows.

The decoder runs on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import torch

from app.contract import Model, SampleRow
from app.models.checks.row_check import Cause
from app.models.checks.segment_check import LoneRow, Segment, Tensors, beside, spec_of
from app.models.decoders.places import PlacedText, Places
from app.models.decoders.texts import TextDecoder

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel

#: The most tokens of each row, and its steps: long ones show nothing else.
_ROWS = ((16, 7), (12, 5), (8, 3), (4, 1))


def decoder_segments(model: Model, rows: Sequence[SampleRow]) -> list[Segment]:
    """The last steps of a few rows. Raises what the decoder raises."""
    assert isinstance(model.call, TextDecoder)
    decoder, bounds = model.call.decoder, model.call.bounds
    lone = []
    for row, (longest, most) in zip(cycle(rows), _ROWS, strict=False):
        ids = row.arrays[0].tolist()[: min(longest, bounds.both or bounds.prompt)]
        steps = min(most, len(ids), bounds.text)
        # a decoder reads its prompt without the last token, which is that of the first step
        fed = [decoder.start, *ids[: steps - 1]] if decoder.encodes else ids[-steps:]
        read = ids if decoder.encodes else ids[: len(ids) - steps + 1]
        one = LoneRow(row, [torch.tensor([each], device=decoder.device) for each in (read, fed)], ())
        lone.append(LoneRow(row, one.given, _whole(decoder, one), f"at step {steps}"))
    most = model.info.batching.max_batch
    batches = [beside(lone, places[:most], Cause.JOINS) for places in ([0, 1, 2, 3], [3, 2, 1, 0])]
    again = partial(_whole, decoder)
    specs = [spec_of("logits", lone[0].made[0])]
    return [Segment(specs, lone, partial(_stepped, decoder), batches, again=again, once="by its own forward")]


def _whole(decoder: DecoderModel, one: LoneRow) -> Tensors:
    """The logits after all tokens of a row, from the model's own forward."""
    read, fed = one.given
    return [decoder.whole(read, fed if decoder.encodes else torch.cat([read[:, :-1], fed], 1))[-1:]]


def _stepped(decoder: DecoderModel, lone: Sequence[LoneRow]) -> Tensors:
    """The logits of the last step, which all rows make together. Those with more steps begin before."""
    read = [one.given[0][0].tolist() for one in lone]
    fed = [one.given[1][0].tolist() for one in lone]
    longest, steps = max(map(len, read)), max(map(len, fed))
    places: Places[int] = Places(decoder, len(lone), longest + steps, longest if decoder.encodes else 0)
    for slab in (places.own, places.read):
        if slab is not None:
            slab.values.normal_()
    rows: list[PlacedText[int]] = []
    for left in range(steps, 0, -1):
        new = [at for at, own in enumerate(fed) if len(own) == left]
        if new:
            ids = torch.tensor([read[at] + [0] * (longest - len(read[at])) for at in new], device=decoder.device)
            rows += places.begin(new, decoder.begin(ids, [len(read[at]) for at in new]), rows)
        logits = places.step(rows, [fed[row.text][-left] for row in rows])
        places.stepped(rows)
    made = torch.empty_like(logits)
    made[[row.text for row in rows]] = logits
    return [made]
