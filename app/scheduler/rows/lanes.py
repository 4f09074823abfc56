"""The rows of one class and priority that wait at a key: in order of arrival, and by length where a policy asks for it.

A row that is taken out of turn, by its length, stays in the order of arrival and is passed over when reached, as rows
of calls that have left are. From the order of length rows are removed at once: a search and a move.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from app.scheduler.types import Row, RowState

#: (class, priority)
Level = tuple[int, int]
#: (class, priority, arrival or deadline, sequence): smaller goes first, within a key and between keys.
Rank = tuple[int, int, int, int]

_WAITING = RowState.WAITING  # looked up once, used per row
_SHORTER = 8  # rows that join a batch may be shorter by this part of its length

#: A row's place in the order of service, and its level: these cost a third of functions, for each row of every unit.
by_order: Callable[[Row], tuple[int, int]] = attrgetter("order")
level_of: Callable[[Row], Level] = attrgetter("call.klass", "call.priority")

#: A length, a place in the order of service, which no two rows share (so that rows are never compared), and the row.
Sorted = tuple[int, tuple[int, int], Row]


def rank(row: Row) -> Rank:
    call = row.call
    return (call.klass, call.priority, *row.order)


class Lane:
    """The rows of one (class, priority), in order of arrival.

    `count`: those of them that wait; `started`: those of these that have run before, and hold memory on the device.

    `by_length`: those that wait in order of length, where the set is sorted so; `total` is the sum of their lengths.
    """

    __slots__ = ("by_length", "count", "picked", "rows", "started", "total")

    def __init__(self, *, by_length: bool = False) -> None:
        self.rows: deque[Row] = deque()
        self.count = 0
        self.started = 0
        self.by_length: list[Sorted] | None = [] if by_length else None
        self.total = 0
        self.picked = False  # rows were taken out of turn, and may still be in `rows`

    def head(self) -> Row | None:
        """The first row that waits."""
        rows = self.rows
        if rows and not self.picked and rows[0].call.alive:
            return rows[0]
        while rows and not self.waits(rows[0]):
            rows.popleft()
        return rows[0] if rows else None

    def waits(self, row: Row) -> bool:
        """Whether a row of `rows` waits here, and was not taken meanwhile."""
        return row.call.alive and not (self.picked and (row.state is not _WAITING or row.stage or row.grouped))

    def sort(self) -> None:
        """Keep the rows in order of length from now on."""
        self.by_length = sorted((row.length, row.order, row) for row in self.rows if self.waits(row))
        self.total = sum(entry[0] for entry in self.by_length)

    def sort_in(self, added: Sequence[Row]) -> None:
        """These have been put into `rows`, for a lane that is sorted by length."""
        assert self.by_length is not None
        for row in added:
            insort(self.by_length, (row.length, row.order, row))
            self.total += row.length

    def count_out(self, row: Row) -> None:
        """A row does not wait here any more."""
        self.count -= 1
        self.started -= row.started
        if self.by_length is not None:
            del self.by_length[self.place(row)]
            self.total -= row.length

    def place(self, row: Row) -> int:
        """The index of a row that waits in the order of length, for a lane that is sorted so."""
        assert self.by_length is not None
        return bisect_left(self.by_length, (row.length, row.order, row))

    def contains(self, row: Row) -> bool:
        """Whether a row that was taken out of turn is still in `rows`."""
        place = bisect_left(self.rows, row.order, key=by_order)
        return place < len(self.rows) and self.rows[place] is row

    def rebuild(self) -> None:
        self.rows = deque(row for row in self.rows if self.waits(row) and row.state is _WAITING)
        self.picked = False


@dataclass(slots=True)
class LengthWindow:
    """Lengths of rows about as long as the first in the order of service, and of its class and priority.

    `lengths`: ascending, those of as many rows on either side of it as were asked for; `place`: its own among them.
    """

    lengths: list[int]
    place: int
    # of all rows of this class and priority that wait:
    count: int
    total: int  # the sum of their lengths
    shortest: int
    longest: int

    def joining(self, length: int) -> range:
        """Places of rows that may join others of this length: no longer, and hardly shorter. Empty without the first.

        Rows that are much shorter would be padded: they go better without those.
        """
        places = range(bisect_left(self.lengths, length - length // _SHORTER), bisect_right(self.lengths, length))
        return places if self.place in places else range(0)


def put_in(rows: deque[Row], added: list[Row]) -> None:
    """Put rows in order into a deque in order. The cost is that of the shorter way from either end to their place."""
    first, last = added[0].order, added[-1].order
    left: list[Row] = []
    right: list[Row] = []
    while rows and rows[0].order < last and rows[-1].order > first:
        left.append(rows.popleft())
        if rows:
            right.append(rows.pop())
    if not rows:
        rows.extend(sorted([*left, *added, *right], key=by_order))
    elif rows[0].order >= last:
        rows.extendleft(sorted([*left, *added], key=by_order, reverse=True))
        rows.extend(reversed(right))
    else:
        rows.extend(sorted([*added, *right], key=by_order))
        rows.extendleft(reversed(left))
