"""The places of a decoder's rows in its slabs. Rows that run together are at the first places and end at one column.

Only the worker that runs the model changes places. The event loop releases rows; the worker frees their places before
it uses any.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from app.engine.kept import Rows
from app.engine.pool import Slots
from app.models.decoders.texts import Text

if TYPE_CHECKING:  # transformers is imported when a model needs it
    from app.models.decoders.decoder import DecoderModel, Prefilled
    from app.models.decoders.slabs import Slab, SlabCache


@dataclass(slots=True, eq=False)
class Written:
    """A row of a decoder. It has `written` columns, up to column `end` of its place, and has `read` others.

    `place` is -1 once it has ended.
    """

    text: Text
    place: int = -1
    end: int = 0
    written: int = 0
    read: int = 0


class Places(Rows[Written]):
    """Of one decoder. There is a slab for what rows write, and with an encoder another for what they have read."""

    def __init__(self, decoder: DecoderModel, longest: int, read: int) -> None:
        """`longest`: the most columns of a row. A place has half as many more, so that rows can grow before they move.

        `read`: columns of a place in the other slab, 0 without an encoder.
        """
        super().__init__()
        self._decoder = decoder
        self._columns = longest + longest // 2 + 1
        self._read_columns = read
        self.row_bytes = self.place_bytes = (self._columns + read) * decoder.shape.column_bytes
        self._gone: deque[Written] = deque()  # released by the loop, places not freed yet
        #: Slots of rows that read their prompts together; empty once the loop has released one of them.
        self.reading: frozenset[int] = frozenset()
        self._at: list[Written | None] = []  # by place
        self._own: Slab
        self._read: Slab | None = None
        self.cache: SlabCache

    def bound(self, most: int) -> None:
        """Reserve places for so many rows. Before serving."""
        self._at = [None] * most
        self.reserved = most
        self._own = self._decoder.slab(most, self._columns)
        self._read = self._decoder.slab(most, self._read_columns) if self._read_columns else None
        self.cache = self._decoder.cache(self._own, self._read)

    def release(self, slots: Slots) -> None:
        super().release(slots)
        if not self.reading.isdisjoint(slots):  # the slot may get another row
            self.reading = frozenset()

    def _left(self, row: Written) -> None:
        self._gone.append(row)

    # called by the worker

    def arrange(self, rows: Sequence[Written], more: int) -> list[Written]:
        """Move exactly these rows to the first places, ending at one column, and keep the next `more` places empty.
        Returns the rows in the order of their places."""
        while self._gone:
            self.leave(self._gone.popleft())
        self._move_together(rows, len(rows), more)
        self._align(rows)
        return [row for row in self._at[: len(rows)] if row is not None]

    def _move_together(self, rows: Sequence[Written], count: int, more: int) -> None:
        """Exchange places until the rows have the first ones and the next `more` are empty."""
        running = set(map(id, rows))
        outside = [row for row in rows if row.place >= count]
        for place in range(count):
            other = self._at[place]
            if other is not None and id(other) in running:
                continue
            self._exchange(outside.pop(), place)
        free = (place for place in range(count + more, len(self._at)) if self._at[place] is None)
        for place in range(count, count + more):
            if (parked := self._at[place]) is not None:
                self._exchange(parked, next(free))

    def _exchange(self, row: Written, place: int) -> None:
        """Move a row to a place; a row there moves to this row's place."""
        other, before = self._at[place], row.place
        if other is None:
            self._copy_row(row, place)
        else:
            first = min(row.end - row.written, other.end - other.written)
            self._own.swap(before, place, slice(first, max(row.end, other.end)))
            if self._read is not None:
                self._read.swap(before, place, slice(0, max(row.read, other.read)))
            other.place = before
        self._at[before], self._at[place] = other, row
        row.place = place

    def _copy_row(self, row: Written, place: int) -> None:
        self._own.copy(place, row.end, self._own, row.place, row.end, row.written)
        if self._read is not None:
            self._read.copy(place, row.read, self._read, row.place, row.read, row.read)

    def _align(self, rows: Sequence[Written]) -> None:
        """Move rows so that all end at one column with room for one more: the column of most of them, if possible."""
        if not rows:
            return
        longest = max(row.written for row in rows)
        ends = [row.end for row in rows]
        end = max(set(ends), key=ends.count)
        if end < longest or end >= self._columns:
            end = longest
        for row in rows:
            self._own.copy(row.place, end, self._own, row.place, row.end, row.written)
            row.end = end

    def make_room(self, rows: Sequence[Written]) -> None:
        """Make room for one more step of the rows that run together."""
        if rows and rows[0].end >= self._columns:
            longest = max(row.written for row in rows)
            end = rows[0].end
            self._own.move(len(rows), end - longest, end, longest - end)
            for row in rows:
                row.end = longest

    def stepped(self, rows: Sequence[Written]) -> None:
        """All of these rows have made a step."""
        for row in rows:
            row.written += 1
            row.end += 1

    def begin(self, slots: Slots, texts: Sequence[Text], begun: Prefilled, running: Sequence[Written]) -> list[Written]:
        """Rows have read their prompts: they get the places after the running rows, and end at the same column."""
        longest = max(begun.written)
        end = running[0].end if running else longest
        if end < longest:  # a prompt is longer than any row that runs has become
            most = max(row.written for row in running)
            self._own.move(len(running), end - most, end, longest - end)
            for row in running:
                row.end = longest
            end = longest
        rows = []
        for index, text in enumerate(texts):
            place = len(running) + index
            row = Written(text, place, end, begun.written[index], begun.has_read[index])
            if begun.own is not None:
                self._own.copy(place, end, begun.own, index, begun.own.columns, row.written)
            if self._read is not None and begun.read is not None:
                self._read.copy(place, row.read, begun.read, index, row.read, row.read)
            self._at[place] = row
            rows.append(row)
        self.join(slots, rows)
        return rows

    def leave(self, row: Written) -> None:
        """Free the place of a row that has finished, or that was released."""
        if row.place >= 0:
            self._at[row.place] = None
            row.place = -1
