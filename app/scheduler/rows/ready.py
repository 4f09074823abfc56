"""The rows that wait at one key (program, stage, length bucket), of one class, in order of service.

A policy cuts units of rows of one class, so each class has a set of its own at a key: what a policy sees of it is what
it may cut. Groups that must be run again go before the other rows of their priority: the bad row in them is soon found,
and the rows that ran well join the others again.

Within a set rows are ordered by (priority, arrival), real-time ones by (priority, deadline) under `edf`. Rows of calls
that have left stay where they are and are passed over when reached (removing from the middle is linear); a lane is
rebuilt when the dead outnumber the living, so that memory is bounded by the rows that wait even while nothing is
served. The same holds for rows that are taken by their length: where a policy picks rows so (`sort_by_length`), each
lane also keeps its rows in order of length.

No step of the scheduler walks the rows that wait: each lane counts them, and rows that return are put in from the end
of the lane that is nearer to their place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby

from app.scheduler.rows.lanes import Lane, LengthWindow, Level, by_order, level_of, put_in, rank
from app.scheduler.rows.retries import Retries, waits
from app.scheduler.types import Klass, Row

#: (program, stage, length bucket)
Key = tuple[int, int, int]

_NEVER = 1 << 62
_SLACK = 64  # dead rows in a lane, or lanes without rows, before they are removed


class ReadySet:
    """The rows of one class ready at one key, and the groups that must be run again as they are."""

    __slots__ = (
        "_arrivals", "_by_length", "_edf", "_lanes", "_levels", "_nonempty", "count", "key", "klass", "retries",
        "started",
    )  # fmt: skip

    def __init__(
        self,
        key: Key,
        klass: Klass = Klass.REALTIME,
        *,
        edf: bool = False,
        nonempty: dict[ReadySet, None] | None = None,
    ) -> None:
        """`edf`: rows are ordered by deadline, not by arrival. The set is in `nonempty` while rows wait."""
        self._edf = edf
        self._nonempty = {} if nonempty is None else nonempty
        self.key = key
        self.klass = klass
        self.count = 0  # rows that wait, retry groups included
        self.started = 0  # those of them that have run before, and hold memory on the device
        self._levels: list[Level] = []  # of the lanes, sorted
        self._lanes: dict[Level, Lane] = {}
        self.retries = Retries()  # groups that must be run again
        self._by_length = False
        self._arrivals: list[tuple[int, int, Row]] = []  # heap of (arrival, sequence, row), where order is by deadline

    def add(self, added: Sequence[Row]) -> None:
        """Put rows of one call that have not run in their place. Calls nearly always arrive in order."""
        call, order = added[0].call, added[0].order
        level = (call.klass, call.priority)
        lane = self._lanes.get(level)
        if lane is None:
            lane = self._open(level)
        rows = lane.rows
        if rows and order < rows[-1].order:
            if len(rows) > 2 * self.count + _SLACK:
                self._rebuild()
                rows = lane.rows
            for place, row in enumerate(added, bisect_left(rows, order, key=by_order)):
                rows.insert(place, row)
        else:
            rows.extend(added)
        lane.count += len(added)
        if self._by_length:
            lane.sort_in(added)
        if not self.count:
            self._nonempty[self] = None
        self.count += len(added)
        if self._edf:
            self._note_arrivals(added)

    def _open(self, level: Level) -> Lane:
        """A lane for rows of another priority. Clients may name any, so lanes in which nothing waits go first."""
        if len(self._levels) > self.count + _SLACK:
            self._lanes = {theirs: lane for theirs, lane in self._lanes.items() if lane.count}
            self._levels = sorted(self._lanes)
        lane = self._lanes[level] = Lane(by_length=self._by_length)
        insort(self._levels, level)
        return lane

    def add_all(self, rows: Iterable[Row]) -> None:
        """Put rows that return in their places: those of a unit are nearly always in order."""
        self._nonempty[self] = None
        for level, group in groupby(rows, key=level_of):
            lane = self._lanes.get(level)
            if lane is None:
                lane = self._open(level)
            added = sorted(group, key=by_order)
            absent = [row for row in added if not lane.contains(row)] if lane.picked else added
            if absent:
                put_in(lane.rows, absent)
            self.count += len(added)
            started = sum(row.started for row in added)
            self.started += started
            lane.started += started
            lane.count += len(added)
            if self._by_length:
                lane.sort_in(added)
            if self._edf:
                self._note_arrivals(added)

    def add_retry(self, group: list[Row]) -> None:
        """Put a group before the other rows of its priority: it runs as one unit."""
        self._nonempty[self] = None
        self.retries.add(group)
        self.count += len(group)
        self.started += sum(row.started for row in group)

    def forget(self, row: Row) -> None:
        """The call of a waiting row has left; the row is passed over from now on. Called before its room is freed."""
        self.count -= 1
        if not self.count:
            self._nonempty.pop(self, None)
        self.started -= row.started
        if not row.grouped:
            self._lanes[row.call.klass, row.call.priority].count_out(row)
        self._tidy()

    def _tidy(self) -> None:
        if sum(len(lane.rows) for lane in self._lanes.values()) > 2 * self.count + _SLACK:
            self._rebuild()

    def _rebuild(self) -> None:
        for lane in self._lanes.values():
            lane.rebuild()

    def before(self, level: Level) -> int:
        """Rows that wait with this class and priority or a better one."""
        count = sum(lane.count for theirs, lane in self._lanes.items() if theirs <= level)
        return count + self.retries.before(level)

    def head(self) -> Row | None:
        """The row that goes first, or None."""
        row = self._lane_head()
        group = self.retries.head() if self.retries.groups else None
        if group is None:
            return row
        return group[0] if row is None or rank(group[0]) <= rank(row) else row

    def oldest(self) -> int:
        """Arrival of the row that has waited longest outside retry groups; call only while `free_count` is not 0."""
        if self._edf:
            while not self._waits_here(self._arrivals[0][2]):
                heappop(self._arrivals)
            return self._arrivals[0][0]
        oldest = _NEVER
        for lane in self._lanes.values():
            row = lane.head()
            if row is not None and row.order[0] < oldest:
                oldest = row.order[0]
        return oldest

    def _waits_here(self, row: Row) -> bool:
        """Whether a row that was added still waits here, outside retry groups."""
        return waits(row) and row.stage == self.key[1] and not row.grouped

    def _note_arrivals(self, rows: Iterable[Row]) -> None:
        """Rows that return are noted again, so the heap is rebuilt when most of it is old."""
        heap = self._arrivals
        for row in rows:
            heappush(heap, (row.call.arrived, row.order[1], row))
        if len(heap) > 2 * self.count + _SLACK:
            rows = {id(row): row for _, _, row in heap if self._waits_here(row)}.values()
            heap[:] = [(row.call.arrived, row.order[1], row) for row in rows]
            heapify(heap)

    def take_retry(self, most: int, room: int) -> list[Row]:
        """Take rows of the group to run again whose turn it is; none if a row of a better priority is first.

        See `Retries.take`.
        """
        able = self.retries.take(most, room, next(self.first(1, room), None))
        self.count -= len(able)
        if not self.count:
            self._nonempty.pop(self, None)
        self.started -= sum(row.started for row in able)
        return able

    def take(self, n: int, room: int) -> list[Row]:
        """Take the first `n` rows outside retry groups, or fewer where fewer wait; at most `room` that start anew.

        Rows for which there is no room are passed over: rows behind them may hold the room.
        """
        taken: list[Row] = []
        for level in self._levels:
            lane = self._lanes[level]
            rows = lane.rows
            passed: list[Row] = []
            before, started = len(taken), lane.started
            while rows and len(taken) < n and (room > 0 or started):
                row = rows.popleft()
                if not (lane.waits(row) if lane.picked else row.call.alive):
                    continue
                if row.started:
                    started -= 1
                    taken.append(row)
                elif room > 0:
                    room -= 1
                    taken.append(row)
                else:
                    passed.append(row)
            self.started -= lane.started - started
            if lane.by_length is None:
                lane.count -= len(taken) - before
                lane.started = started
            else:
                for row in taken[before:]:
                    lane.count_out(row)
            rows.extendleft(reversed(passed))
            if len(taken) == n:
                break
        self.count -= len(taken)
        if not self.count:
            self._nonempty.pop(self, None)
        return taken

    def first(self, n: int, room: int) -> Iterator[Row]:
        """The rows that `take` would take, which stay where they are."""
        for level in self._levels:
            lane = self._lanes[level]
            started = lane.started
            for row in lane.rows:
                if n == 0 or not (room > 0 or started):
                    break
                if not (lane.waits(row) and (row.started or room > 0)):
                    continue
                n -= 1
                room -= not row.started
                started -= row.started
                yield row

    def sort_by_length(self) -> None:
        """Keep the rows in order of length as well, from now on."""
        if not self._by_length:
            self._by_length = True
            for lane in self._lanes.values():
                lane.sort()

    def longest(self) -> int:
        """The length of the longest row. The set keeps its rows in order of length from now on."""
        self.sort_by_length()
        lengths = [lane.by_length[-1][0] for lane in self._lanes.values() if lane.by_length]
        return max([*lengths, *(row.length for row in self.retry_rows())], default=0)

    def length_window(self, most: int) -> LengthWindow | None:
        """The first row, and up to `most` on either side of it in order of length; of a set that is sorted so.

        None while a group must be run again.
        """
        row = None if self.retries.groups else self._lane_head()
        if row is None:
            return None
        lane = self._lanes[level_of(row)]
        by_length, place = lane.by_length, lane.place(row)
        assert by_length is not None
        first = max(0, place - most)
        lengths = [entry[0] for entry in by_length[first : place + most + 1]]
        return LengthWindow(lengths, place - first, lane.count, lane.total, by_length[0][0], by_length[-1][0])

    def similar(self, n: int, shorter: int) -> list[Row]:
        """`n` rows next to one another in the order of length, which stay where they are.

        The first row in the order of service is one of them, and `shorter` of them are before it.
        """
        row = self._lane_head()
        assert row is not None
        lane = self._lanes[level_of(row)]
        assert lane.by_length is not None
        first = lane.place(row) - shorter
        return [entry[2] for entry in lane.by_length[first : first + n]]

    def take_similar(self, n: int, shorter: int) -> list[Row]:
        """Take the rows of `similar`; in the order of service, as every unit has them."""
        self._tidy()  # of rows taken before, which run by now; those taken now still look as if they waited
        taken = self.similar(n, shorter)
        lane = self._lanes[level_of(taken[0])]
        assert lane.by_length is not None
        first = lane.place(taken[0])
        del lane.by_length[first : first + n]
        started = sum(row.started for row in taken)
        lane.count -= n
        lane.started -= started
        lane.total -= sum(row.length for row in taken)
        lane.picked = True
        self.count -= n
        if not self.count:
            self._nonempty.pop(self, None)
        self.started -= started
        return sorted(taken, key=by_order)

    @property
    def free_count(self) -> int:
        """Rows that a policy may cut: outside retry groups, and of a better priority than the first of these.

        If the first retry group does not fit, every other row counts: those behind it may hold the room it needs.
        """
        group = self.retries.head() if self.retries.groups else None
        if group is None:
            return self.count
        first = level_of(group[0])
        better = sum(lane.count for level, lane in self._lanes.items() if level < first)
        return better or sum(lane.count for lane in self._lanes.values())

    def retry_rows(self) -> Iterator[Row]:
        """The rows that wait in groups that must be run again."""
        return self.retries.rows()

    def rows(self) -> Iterator[Row]:
        """All rows that wait, in no particular order."""
        yield from self.retry_rows()
        for lane in self._lanes.values():
            yield from filter(lane.waits, lane.rows)

    def _lane_head(self) -> Row | None:
        for level in self._levels:
            row = self._lanes[level].head()
            if row is not None:
                return row
        return None
