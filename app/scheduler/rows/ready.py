"""The rows that wait on a device: a set for each key (program, stage, length bucket) and class, in order of (priority,
arrival).

Rows of a failed unit run again as one unit, so they are a set of their own. For a policy that picks rows by length they
are also sorted by length. Each order is a sorted list of tuples: a row is found by bisection, and inserting or deleting
shifts the rest of the list with one memory move. The scheduler never scans all waiting rows.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from app.scheduler.types import Klass, Row, RowState

#: (program, stage, length bucket)
Key = tuple[int, int, int]
#: (class, priority)
Level = tuple[Klass, int]
#: (priority, arrival, sequence): the order within a set, smallest first. It is unique to a row, so
#: comparing tuples that begin with it never compares rows.
RowOrder = tuple[int, int, int]

_NEVER = 1 << 62
_BETWEEN = RowState.BETWEEN  # looked up once, used per row
# In C: a list comprehension would be a Python function call.
_row: Callable[[tuple[RowOrder, Row]], Row] = itemgetter(1)


def longest_of(rows: Iterable[Row]) -> int:
    """The length of the longest row, 0 for none. Steps at a cell count: a decoder attends to what it has written."""
    return max((row.length + row.steps for row in rows), default=0)


@dataclass(slots=True)
class LengthWindow:
    """The lengths of the rows nearest in length to the first row in order of service, of its class and priority.

    `lengths`: ascending, of that row and up to a given number on either side. `place`: the index of that row.
    """

    lengths: list[int]
    place: int
    # of all rows of this class and priority that wait:
    count: int
    total: int  # the sum of their lengths
    shortest: int
    longest: int


class ReadySet:
    """The waiting rows of one class at one key. `again`: the rows of a failed unit, which run again as one unit."""

    __slots__ = (
        "_by_length", "_entries", "_nonempty", "_totals", "again", "count", "key", "klass", "started",
    )  # fmt: skip

    def __init__(self, key: Key, klass: Klass, nonempty: dict[ReadySet, None], *, again: bool = False) -> None:
        """The set adds itself to `nonempty` while it has rows."""
        self._nonempty = nonempty
        self.key = key
        self.klass = klass
        self.again = again
        self.count = 0  # rows that wait
        self.started = 0  # those that have run before and hold memory on the device
        self._entries: list[tuple[RowOrder, Row]] = []
        self._by_length: list[tuple[int, int, RowOrder, Row]] | None = None  # (priority, length, order, row)
        self._totals: dict[int, int] = {}  # by priority: the sum of the lengths, where rows are sorted by them

    def __contains__(self, row: Row) -> bool:
        place = bisect_left(self._entries, (row.order,))
        return place < self.count and self._entries[place][1] is row

    def add(self, rows: Sequence[Row]) -> None:
        """Insert rows in order. Calls nearly always arrive in order, so this is usually an append."""
        entries = self._entries
        if not entries:
            self._nonempty[self] = None
        if not entries or entries[-1][0] < rows[0].order:
            for row in rows:
                entries.append((row.order, row))
        else:
            first = bisect_left(entries, (rows[0].order,))
            last = bisect_left(entries, (rows[-1].order,), first)
            entries[first:last] = sorted([*entries[first:last], *((row.order, row) for row in rows)])
        self.count = len(entries)
        if self._by_length is not None:
            self._sort_in(rows)

    def put_back(self, rows: Sequence[Row]) -> None:
        """Insert the rows of a unit again."""
        self.started += sum(row.state is _BETWEEN for row in rows)
        self.add(sorted(rows, key=lambda row: row.order))

    def remove(self, rows: Sequence[Row]) -> None:
        """Remove these rows, which are in order of service. Call it before their states change."""
        if not rows:
            return
        entries, removed = self._entries, len(rows)
        if entries[removed - 1][1] is rows[-1]:
            del entries[:removed]
        else:
            for row in rows:
                del entries[bisect_left(entries, (row.order,))]
        self.count -= removed
        if not entries:
            self._nonempty.pop(self, None)
        if self.started:
            self.started -= sum(row.state is _BETWEEN for row in rows)
        if self._by_length is not None:
            for row in rows:
                del self._by_length[bisect_left(self._by_length, (row.order[0], row.length, row.order))]
                self._count_length(row.order[0], -row.length)

    def before(self, priority: int) -> int:
        """Rows that wait with this priority or a better one."""
        return bisect_left(self._entries, ((priority + 1,),))

    def head(self) -> Row:
        """The first row in order of service. Call it only while `count` is not 0."""
        return self._entries[0][1]

    def oldest(self) -> int:
        """Arrival of the row that has waited longest. Call it only while `count` is not 0."""
        oldest, place = _NEVER, 0
        while place < self.count:  # the first row of each priority
            priority, arrived, _ = self._entries[place][0]
            oldest = min(oldest, arrived)
            place = self.before(priority)
        return oldest

    def first(self, n: int, room: int) -> list[Row]:
        """The first `n` rows, or fewer if fewer wait. At most `room` of them have not started yet.

        Once `room` is used up, rows that have not started are skipped: rows behind them may have started already.
        """
        if n <= room:
            return list(map(_row, self._entries[:n]))
        found: list[Row] = []
        started = self.started
        for _, row in self._entries:
            if len(found) == n or not (room > 0 or started):
                break
            if row.state is _BETWEEN:
                started -= 1
            elif room > 0:
                room -= 1
            else:
                continue
            found.append(row)
        return found

    def take(self, n: int, room: int) -> list[Row]:
        """Remove and return the rows of `first`."""
        if n > room or self.started or self._by_length is not None:
            taken = self.first(n, room)
            self.remove(taken)
            return taken
        entries = self._entries
        taken = list(map(_row, entries[:n]))
        del entries[:n]
        self.count = len(entries)
        if not entries:
            self._nonempty.pop(self, None)
        return taken

    # by length

    def _sort_in(self, rows: Sequence[Row]) -> None:
        assert self._by_length is not None
        for row in rows:
            priority = row.order[0]
            insort(self._by_length, (priority, row.length, row.order, row))
            self._count_length(priority, row.length)

    def _count_length(self, priority: int, length: int) -> None:
        total = self._totals[priority] = self._totals.get(priority, 0) + length
        if not total:  # clients may name any number of priorities
            del self._totals[priority]

    def length_window(self, most: int) -> LengthWindow:
        """The first row in order of service and up to `most` rows on either side by length.

        The set keeps its rows in order of length from now on.
        """
        if self._by_length is None:
            self._by_length = []
            self._sort_in([row for _, row in self._entries])
        by_length = self._by_length
        row = self.head()
        priority = row.order[0]
        place = bisect_left(by_length, (priority, row.length, row.order))
        low, high = bisect_left(by_length, (priority,)), bisect_left(by_length, (priority + 1,))
        first = max(low, place - most)
        lengths = [entry[1] for entry in by_length[first : min(high, place + most + 1)]]
        total = self._totals.get(priority, 0)
        return LengthWindow(lengths, place - first, high - low, total, by_length[low][1], by_length[high - 1][1])

    def similar(self, n: int, shorter: int) -> list[Row]:
        """`n` rows that are adjacent in order of length, without removing them.

        They contain the first row in order of service, with `shorter` of them before it in order of length.
        """
        assert self._by_length is not None
        row = self.head()
        first = bisect_left(self._by_length, (row.order[0], row.length, row.order)) - shorter
        return [entry[3] for entry in self._by_length[first : first + n]]

    def take_similar(self, n: int, shorter: int) -> list[Row]:
        """Remove and return the rows of `similar`, in order of service."""
        taken = sorted(self.similar(n, shorter), key=lambda row: row.order)
        self.remove(taken)
        return taken


class ReadyTable:
    """All ready sets of a device, by key and class. The sets of a removed program are dropped.

    Look-ups go through `nonempty`, since with many programs most sets are empty.
    """

    def __init__(self) -> None:
        self._sets: dict[tuple[Key, Klass], ReadySet] = {}
        self.nonempty: dict[ReadySet, None] = {}  # sets with waiting rows; each set adds and removes itself

    def at(self, key: Key, klass: Klass) -> ReadySet:
        ready = self._sets.get((key, klass))
        if ready is None:
            ready = self._sets[key, klass] = ReadySet(key, klass, self.nonempty)
        return ready

    def add_again(self, key: Key, klass: Klass, rows: Sequence[Row]) -> None:
        """Add rows whose unit failed, as a set of their own that runs as one unit."""
        ReadySet(key, klass, self.nonempty, again=True).put_back(rows)

    def forget(self, row: Row, key: Key) -> None:
        """Remove a row whose call has left. Call it before its state changes."""
        ready = self._sets.get((key, row.call.klass))
        if ready is None or row not in ready:  # it waits to run again
            ready = next(ready for ready in self.nonempty if ready.again and ready.key == key and row in ready)
        ready.remove([row])

    def alike(self, ready: ReadySet) -> list[ReadySet]:
        """The sets of the same key and class in which rows wait, this one too: rows that run again have their own."""
        return [other for other in self.nonempty if (other.key, other.klass) == (ready.key, ready.klass)]

    def of_program(self, program: int, klass: Klass) -> list[ReadySet]:
        """The sets of a program's rows of one class in which rows wait."""
        return [ready for ready in self.nonempty if ready.key[0] == program and ready.klass is klass]

    def waiting_before(self, program: int, klass: Klass, level: Level) -> int:
        """Rows of a program and a class that wait at this level or a better one."""
        sets = self.of_program(program, klass)
        return sum(ready.count if klass < level[0] else ready.before(level[1]) for ready in sets)

    def waiting_by_stage(self, program: int, stages: int) -> list[int]:
        """Rows of a program that wait, for each of its stages."""
        counts = [0] * stages
        for ready in self.nonempty:
            owner, stage, _ = ready.key
            if owner == program:
                counts[stage] += ready.count
        return counts

    def oldest(self, program: int, klass: Klass) -> int | None:
        """When the row of a program and class that has waited longest arrived; None if none waits."""
        return min((ready.oldest() for ready in self.of_program(program, klass)), default=None)

    def drop_program(self, program: int) -> None:
        for place in [place for place in self._sets if place[0][0] == program]:
            self.nonempty.pop(self._sets.pop(place), None)
