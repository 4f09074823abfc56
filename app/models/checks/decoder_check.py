"""Whether a row of a decoder writes what it would alone, where others begin and end between its steps.

A few rows share slabs as they do when served: one begins, and two join it later. The logits of each step are compared
with what the model's own forward gives for all that the row has read and written: alone, at once, and without a cache.
So this also finds an architecture whose steps differ from its forward. The places hold noise before rows come, as they
do when others have been there.

The decoder runs on the caller's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle

import torch

from app.contract import Model, SampleRow
from app.models.checks.parts import comparable, spec_of
from app.models.checks.row_check import Cause, Finding, Tolerance, difference
from app.models.decoders.texts import TextDecoder

_LENGTHS = (16, 12, 8)  # tokens that each row reads, at most: long ones show nothing else
_STEPS = 2  # alone, and in company


def check_decoder(model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> Finding | None:
    """The largest difference of any step, which names it; None within `tolerance`. Raises what the decoder raises."""
    if model.info.batching.max_batch < 2:
        return None
    assert isinstance(model.call, TextDecoder)
    shared = _Shared(model.call, [row.arrays[0].tolist() for row in rows])
    for count in (1, 2):
        shared.join(count)
        shared.step()
    alone = shared.alone()
    got = [logits for row in shared.rows for logits in row.logits]
    how = [each for row in shared.rows for each in row.how]
    specs = [spec_of("logits", got[0])]

    def differs(got: Sequence[torch.Tensor], how: Sequence[str]) -> str | None:
        expected, values = ([[comparable(logits)[0]] for logits in each] for each in (alone, got))
        return difference(specs, tolerance, expected, values, how, "by its own forward")

    found = differs(got, how)
    if found is None:
        return None
    random = differs(shared.alone(), ["again"] * len(how))
    return Finding(Cause.JOINS, found) if random is None else Finding(Cause.RANDOM, random)


@dataclass(slots=True)
class _Row:
    """`read`: what it was sent; `ids`: all that its decoder has read and written; `written`, `has_read`: columns."""

    read: list[int]
    ids: list[int]
    written: int
    has_read: int
    logits: list[torch.Tensor] = field(default_factory=list)  # [1, words] of each step
    how: list[str] = field(default_factory=list)


class _Shared:
    """Slabs, and the rows at their first places, all of which end at one column."""

    def __init__(self, call: TextDecoder, rows: Sequence[list[int]]) -> None:
        self._decoder = decoder = call.decoder
        room = max(1, call.max_tokens + call.most - 2 * _STEPS)
        self._waiting = [row[: min(most, room)] for row, most in zip(cycle(rows), _LENGTHS, strict=False)]
        longest = self._end = max(map(len, self._waiting))
        self._own = decoder.slab(len(_LENGTHS), longest + 2 * _STEPS)
        self._read = decoder.slab(len(_LENGTHS), longest) if decoder.encodes else None
        for slab in (self._own, self._read):
            if slab is not None:
                slab.values.normal_()
        self._cache = decoder.cache(self._own, self._read)
        self.rows: list[_Row] = []

    def alone(self) -> list[torch.Tensor]:
        """The logits of the steps of all rows, from the model's own forward."""
        found: list[torch.Tensor] = []
        for row in self.rows:
            ids = torch.tensor([row.read]), torch.tensor([row.ids[:-1]])
            logits = self._decoder.whole(*(each.to(self._decoder.device) for each in ids))
            found += logits[-len(row.logits) :, None]
        return found

    def join(self, count: int) -> None:
        """Rows that wait read what they were sent, in one batch, and get the next places."""
        new, self._waiting = self._waiting[:count], self._waiting[count:]
        longest = max(map(len, new))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in new], device=self._decoder.device)
        begun = self._decoder.begin(ids, list(map(len, new)))
        for index, read in enumerate(new):
            first = [self._decoder.start] if self._decoder.encodes else list(read)
            row = _Row(read, first, begun.written[index], begun.has_read[index])
            place = len(self.rows)
            if begun.own is not None:
                self._own.copy(place, self._end, begun.own, index, begun.own.columns, row.written)
            if self._read is not None and begun.read is not None:
                self._read.copy(place, row.has_read, begun.read, index, row.has_read, row.has_read)
            self.rows.append(row)

    def step(self) -> None:
        """Some steps of all rows; each goes on with the likeliest token."""
        for _ in range(_STEPS):
            tokens = torch.tensor([row.ids[-1] for row in self.rows], device=self._decoder.device)
            written, read = [row.written for row in self.rows], [row.has_read for row in self.rows]
            logits = self._decoder.step(tokens, self._cache, self._end, written, read)
            self._end += 1
            for place, row in enumerate(self.rows):
                row.written += 1
                row.logits.append(logits[place : place + 1].clone())
                row.ids.append(int(logits[place].argmax()))
                row.how.append(f"at step {len(row.logits)}, beside {len(self.rows) - 1} others")
