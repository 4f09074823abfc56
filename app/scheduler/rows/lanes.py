"""The rows of one class and priority that wait at a key: in order of arrival, and by length where a policy asks for it.

A row that is taken out of turn, by its length, stays where it stands in the order of arrival and is passed over when
reached, as rows of calls that have left are. In the order of length rows are removed at once: a search and a move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from dataclasses import dataclass

from app.scheduler.types import Row, RowState

_WAITING = RowState.WAITING  # looked up once, used per row
_ALIKE = 8  # the part of a length by which rows that join a batch may be shorter

#: A length, a place in the order of service, which no two rows share (so that rows are never compared), and the row.
Sorted = tuple[int, tuple[int, int], Row]


class Lane:
    """The rows of one (class, priority), in order of arrival. `count`: those of them that wait; `going`: those of these
    that hold something on the device.

    `by_length`: those that wait in order of length, where the set is sorted so; `total` is the sum of their lengths.
    """

    __slots__ = ("by_length", "count", "going", "picked", "rows", "total")

    def __init__(self, *, by_length: bool = False) -> None:
        self.rows: deque[Row] = deque()
        self.count = 0
        self.going = 0
        self.by_length: list[Sorted] | None = [] if by_length else None
        self.total = 0
        self.picked = False  # rows were taken from their middle, and may still stand there

    def head(self) -> Row | None:
        """The first row that waits."""
        rows = self.rows
        while rows and not self.has(rows[0]):
            rows.popleft()
        return rows[0] if rows else None

    def has(self, row: Row) -> bool:
        """Whether a row that stands here waits here, and was not taken meanwhile."""
        return row.call.alive and not (self.picked and (row.state is not _WAITING or row.stage or row.grouped))

    def sort(self) -> None:
        """Keep the rows in order of length from now on."""
        self.by_length = sorted((row.length, row.order, row) for row in self.rows if self.has(row))
        self.total = sum(entry[0] for entry in self.by_length)

    def note(self, row: Row) -> None:
        """A row waits here now."""
        self.count += 1
        self.going += row.started
        if self.by_length is not None:
            insort(self.by_length, (row.length, row.order, row))
            self.total += row.length

    def lose(self, row: Row) -> None:
        """A row does not wait here any more."""
        self.count -= 1
        self.going -= row.started
        if self.by_length is not None:
            del self.by_length[self.place(row)]
            self.total -= row.length

    def place(self, row: Row) -> int:
        """Where a row that waits stands in the order of length, for a lane that is sorted so."""
        assert self.by_length is not None
        return bisect_left(self.by_length, (row.length, row.order, row))

    def stands(self, row: Row) -> bool:
        """Whether a row that was taken from the middle is still in its place in the order of arrival."""
        place = bisect_left(self.rows, row.order, key=lambda other: other.order)
        return place < len(self.rows) and self.rows[place] is row

    def rebuild(self) -> None:
        self.rows = deque(row for row in self.rows if self.has(row) and row.state is _WAITING)
        self.picked = False


@dataclass(slots=True)
class Alike:
    """Rows of about the length of the first in the order of service, and of its class and priority.

    `lengths`: ascending, those of as many rows on either side of it as were asked for; `place`: its own among them.
    """

    lengths: list[int]
    place: int
    # of all rows of this class and priority that wait:
    count: int
    total: int  # the sum of their lengths
    shortest: int
    longest: int

    def like(self, length: int) -> range:
        """Places of rows that may join others of this length: no longer, and hardly shorter. Empty without the first.

        Rows that are much shorter would be padded: they go better without those.
        """
        places = range(bisect_left(self.lengths, length - length // _ALIKE), bisect_right(self.lengths, length))
        return places if self.place in places else range(0)
