"""The places of a decoder's rows in its slabs. Rows that run together are at the first places and end at one column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel, Prefilled

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class PlacedText(Generic[T]):
    """A row of a decoder. It has `written` columns, up to column `end` of its place, and has `read` others.

    `place` is -1 once it has ended.
    """

    text: T
    place: int = -1
    end: int = 0
    written: int = 0
    read: int = 0


class Places(Generic[T]):
    """Slabs of a decoder: one for what rows write, and with an encoder another for what they have read."""

    def __init__(self, decoder: DecoderModel, count: int, columns: int, read_columns: int) -> None:
        """`count` places of so many columns in each slab; `read_columns` is 0 without an encoder."""
        self._decoder = decoder
        self._at: list[PlacedText[T] | None] = [None] * count
        self._columns = columns
        self.own = decoder.slab(count, columns)
        self.read = decoder.slab(count, read_columns) if read_columns else None
        self.cache = decoder.cache(self.own, self.read)

    def arrange(self, rows: Sequence[PlacedText[T]], more: int) -> list[PlacedText[T]]:
        """Move exactly these rows to the first places, ending at one column, and keep the next `more` places empty.
        Returns the rows in the order of their places."""
        self._move_together(rows, len(rows), more)
        self._align(rows)
        return [row for row in self._at[: len(rows)] if row is not None]

    def _move_together(self, rows: Sequence[PlacedText[T]], count: int, more: int) -> None:
        """Exchange places until the rows have the first ones and the next `more` are empty."""
        running, outside = set(rows), [row for row in rows if row.place >= count]
        for place in range(count):
            if self._at[place] not in running:
                self._exchange(outside.pop(), place)
        free = (place for place in range(count + more, len(self._at)) if self._at[place] is None)
        for place in range(count, count + more):
            if (parked := self._at[place]) is not None:
                self._exchange(parked, next(free))

    def _exchange(self, row: PlacedText[T], place: int) -> None:
        """Move a row to a place; a row there moves to this row's place."""
        other, before = self._at[place], row.place
        if other is None:
            self.own.copy(place, row.end, self.own, before, row.end, row.written)
            if self.read is not None:
                self.read.copy(place, row.read, self.read, before, row.read, row.read)
        else:
            first = min(row.end - row.written, other.end - other.written)
            self.own.swap(before, place, slice(first, max(row.end, other.end)))
            if self.read is not None:
                self.read.swap(before, place, slice(0, max(row.read, other.read)))
            other.place = before
        self._at[before], self._at[place] = other, row
        row.place = place

    def _align(self, rows: Sequence[PlacedText[T]]) -> None:
        """Move rows so that all end at one column with room for one more: the column of most of them, if possible."""
        if not rows:
            return
        longest = max(row.written for row in rows)
        ends = [row.end for row in rows]
        end = max(set(ends), key=ends.count)
        if end < longest or end >= self._columns:
            end = longest
        for row in rows:
            self.own.copy(row.place, end, self.own, row.place, row.end, row.written)
            row.end = end

    def _shift(self, rows: Sequence[PlacedText[T]], end: int) -> None:
        """Move rows that run together, which end at one column, so that they end at this one."""
        longest, before = max(row.written for row in rows), rows[0].end
        self.own.move(len(rows), before - longest, before, end - before)
        for row in rows:
            row.end = end

    def step(self, rows: Sequence[PlacedText[T]], tokens: Sequence[int]) -> torch.Tensor:
        """Read one token of each of these rows, which run together -> logits [rows, vocabulary] of the next.

        The rows have not made the step before `stepped` is called.
        """
        if rows[0].end >= self._columns:  # make room
            self._shift(rows, max(row.written for row in rows))
        given = torch.tensor(tokens, device=self._decoder.device)
        written, read = [row.written for row in rows], [row.read for row in rows]
        return self._decoder.step(given, self.cache, rows[0].end, written, read)

    def stepped(self, rows: Sequence[PlacedText[T]]) -> None:
        """All of these rows have made a step."""
        for row in rows:
            row.written += 1
            row.end += 1

    def begin(self, texts: Sequence[T], begun: Prefilled, running: Sequence[PlacedText[T]]) -> list[PlacedText[T]]:
        """Rows have read their prompts: they get the places after the running rows, and end at the same column."""
        longest = max(begun.written)
        end = running[0].end if running else longest
        if end < longest:  # a prompt is longer than any row that runs has become
            self._shift(running, longest)
            end = longest
        rows = []
        for index, text in enumerate(texts):
            place = len(running) + index
            row = PlacedText(text, place, end, begun.written[index], begun.has_read[index])
            if begun.own is not None:
                self.own.copy(place, end, begun.own, index, begun.own.columns, row.written)
            if self.read is not None and begun.read is not None:
                self.read.copy(place, row.read, begun.read, index, row.read, row.read)
            self._at[place] = row
            rows.append(row)
        return rows

    def leave(self, row: PlacedText[T]) -> None:
        """Free the place of a row that has finished, or that was released."""
        if row.place >= 0:
            self._at[row.place] = None
            row.place = -1
