"""Whether a row of a decoder gets the tokens that it gets alone, while other rows begin and end between its steps.

A few rows share slabs as in a server: one begins, two join it later, the first leaves, the last one moves into its
place, and another joins. The logits of each step are compared with those of the model's own forward for all tokens of
the row: alone, at once, and without a cache. So this also finds an architecture whose steps differ from its forward.
The slabs hold noise at first, as they do after earlier rows.

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

_LENGTHS = (16, 12, 8, 4)  # tokens that each row reads, at most: long ones show nothing else
_PLACES = 3
_STEPS = 2  # between two changes of the rows; a row sees at most three changes

_Logits = list[torch.Tensor]  # [1, vocabulary] each, of one step


def check_decoder(model: Model, rows: Sequence[SampleRow], tolerance: Tolerance) -> Finding | None:
    """The largest difference of any step, which names it; None within `tolerance`. Raises what the decoder raises."""
    if model.info.batching.max_batch < 2:
        return None
    assert isinstance(model.call, TextDecoder)
    shared = _SharedSlabs(model.call, [row.arrays[0].tolist() for row in rows])
    finished = shared.run()
    alone = [shared.alone(row) for row in finished]
    found = _difference(tolerance, alone, [row.logits for row in finished], [row.how for row in finished])
    if found is None:
        return None
    again = [shared.alone(row) for row in finished]
    random = _difference(tolerance, alone, again, [["again"] * len(row.how) for row in finished])
    return Finding(Cause.JOINS, found) if random is None else Finding(Cause.RANDOM, random)


@dataclass(slots=True)
class _Row:
    """`read`: the tokens that were sent; `ids`: all tokens that its decoder has read and written. `written` and
    `has_read`: its columns in the slabs."""

    read: list[int]
    ids: list[int]
    written: int
    has_read: int
    logits: _Logits = field(default_factory=list)
    how: list[str] = field(default_factory=list)


class _SharedSlabs:
    """Slabs, and the rows at their first places. All rows end at one column."""

    def __init__(self, call: TextDecoder, rows: Sequence[list[int]]) -> None:
        self._decoder = decoder = call.decoder
        room = max(1, (call.bounds.both or call.bounds.prompt + 3 * _STEPS) - 3 * _STEPS)
        self._waiting = [row[: min(most, room)] for row, most in zip(cycle(rows), _LENGTHS, strict=False)]
        longest = self._end = max(map(len, self._waiting))
        self._own = decoder.slab(_PLACES, longest + len(_LENGTHS) * _STEPS)
        self._read = decoder.slab(_PLACES, longest) if decoder.encodes else None
        for slab in (self._own, self._read):
            if slab is not None:
                slab.values.normal_()
        self._cache = decoder.cache(self._own, self._read)
        self._rows: list[_Row] = []

    def run(self) -> list[_Row]:
        """All rows, with the logits of their steps."""
        self._join(1)
        self._step()
        first = self._rows[0]
        self._join(2)
        self._step()
        self._leave()
        self._step()
        self._join(1)
        self._step()
        return [first, *self._rows]

    def alone(self, row: _Row) -> _Logits:
        """The logits of the row's steps, from the model's own forward."""
        ids = torch.tensor([row.read]), torch.tensor([row.ids[:-1]])
        logits = self._decoder.whole(*(each.to(self._decoder.device) for each in ids))
        return list(logits[-len(row.logits) :, None])

    def _join(self, count: int) -> None:
        """Prefill waiting rows in one batch, and give them the next places."""
        new, self._waiting = self._waiting[:count], self._waiting[count:]
        longest = max(map(len, new))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in new], device=self._decoder.device)
        begun = self._decoder.begin(ids, list(map(len, new)))
        for index, read in enumerate(new):
            first = [self._decoder.start] if self._decoder.encodes else list(read)
            row = _Row(read, first, begun.written[index], begun.has_read[index])
            place = len(self._rows)
            if begun.own is not None:
                self._own.copy(place, self._end, begun.own, index, begun.own.columns, row.written)
            if self._read is not None and begun.read is not None:
                self._read.copy(place, row.has_read, begun.read, index, row.has_read, row.has_read)
            self._rows.append(row)

    def _leave(self) -> None:
        """The first row leaves, and the last one moves into its place."""
        last = self._rows[0] = self._rows.pop()
        self._own.copy(0, self._end, self._own, len(self._rows), self._end, last.written)
        if self._read is not None:
            self._read.copy(0, last.has_read, self._read, len(self._rows), last.has_read, last.has_read)

    def _step(self) -> None:
        """Some steps of all rows; the next token of each is the likeliest."""
        for _ in range(_STEPS):
            tokens = torch.tensor([row.ids[-1] for row in self._rows], device=self._decoder.device)
            written, read = [row.written for row in self._rows], [row.has_read for row in self._rows]
            logits = self._decoder.step(tokens, self._cache, self._end, written, read)
            self._end += 1
            for place, row in enumerate(self._rows):
                row.written += 1
                row.logits.append(logits[place : place + 1].clone())
                row.ids.append(int(logits[place].argmax()))
                row.how.append(f"at step {len(row.logits)}, beside {len(self._rows) - 1} others")


def _difference(
    tolerance: Tolerance, alone: Sequence[_Logits], got: Sequence[_Logits], how: Sequence[Sequence[str]]
) -> str | None:
    """The largest difference, in words."""
    expected, values = ([[comparable(one)[0]] for row in rows for one in row] for rows in (alone, got))
    names = [each for row in how for each in row]
    return difference([spec_of("logits", alone[0][0])], tolerance, expected, values, names, "by its own forward")
