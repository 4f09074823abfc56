"""The ready table: the rows that wait, by key (program, stage, length bucket) and class, each in order of service.

A policy cuts units of rows of one class, so each class has a set of its own at a key: what a policy sees of it is what
it may cut. Groups that must be run again go before the other rows of their priority: the bad row in them is soon found,
and the rows that ran well join the others again.

Within a set rows stand by (priority, arrival), or by (priority, deadline) where real-time calls go so. Rows of calls
that have left stay where they are and are passed over when reached (removing from the middle is linear); a lane is
rebuilt when the dead outnumber the living, so that memory is bounded by the rows that wait even while nothing is
served. So do rows that are taken by their length: for a set whose policy picks rows so (`sort_by_length`), each lane
also keeps its rows in order of length.

No step of the scheduler walks the rows that wait: each lane counts those that it is asked for, and rows that come back
are put in from the end of the lane that is nearer to their place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby
from operator import attrgetter

from app.scheduler.rows.lanes import Alike, Lane
from app.scheduler.types import Klass, Row, RowState

Key = tuple[int, int, int]
#: (class, priority)
Level = tuple[int, int]
#: (class, priority, arrival or deadline, sequence): smaller goes first, within a key and between keys.
Rank = tuple[int, int, int, int]

_SLACK = 64  # dead rows in a lane, or lanes without rows, before they are removed


_WAITING = RowState.WAITING  # looked up once, used per row

# of each row of every unit: these cost a third of functions
_order: Callable[[Row], tuple[int, int]] = attrgetter("order")
_level: Callable[[Row], Level] = attrgetter("call.klass", "call.priority")


def _waits(row: Row) -> bool:
    return row.call.alive and row.state is _WAITING


def rank(row: Row) -> Rank:
    call = row.call
    return (call.klass, call.priority, *row.order)


class ReadySet:
    """The rows of one class ready at one key, and the groups that must be run again as they are."""

    __slots__ = ("_arrivals", "_by_length", "_edf", "_lanes", "_levels", "_retries", "count", "going", "key", "klass")

    def __init__(self, key: Key, klass: Klass = Klass.REALTIME, *, edf: bool = False) -> None:
        """`edf`: rows stand in order of deadline, not of arrival."""
        self._edf = edf
        self.key = key
        self.klass = klass
        self.count = 0  # rows that wait, retry groups included
        self.going = 0  # those of them that hold something on the device: between two steps, or between stages
        self._levels: list[Level] = []  # of the lanes, sorted
        self._lanes: dict[Level, Lane] = {}
        self._retries: deque[list[Row]] = deque()
        self._by_length = False
        self._arrivals: list[tuple[int, int, Row]] = []  # heap of (arrival, sequence, row), where order is by deadline

    def add(self, row: Row) -> None:
        """Put a row in its place. Rows nearly always come in order, which is an append."""
        call = row.call
        level = (call.klass, call.priority)
        lane = self._lanes.get(level)
        if lane is None:
            lane = self._open(level)
        rows = lane.rows
        if rows and row.order < rows[-1].order:
            if len(rows) > 2 * self.count + _SLACK:
                self._rebuild()
                rows = lane.rows
            rows.insert(bisect_left(rows, row.order, key=_order), row)
        else:
            rows.append(row)
        lane.note(row)
        self.count += 1
        self.going += row.started
        if self._edf:
            self._note_arrivals((row,))

    def _open(self, level: Level) -> Lane:
        """A lane for rows of another priority. Clients may name any, so lanes in which nothing waits go first."""
        if len(self._levels) > self.count + _SLACK:
            self._lanes = {theirs: lane for theirs, lane in self._lanes.items() if lane.count}
            self._levels = sorted(self._lanes)
        lane = self._lanes[level] = Lane(by_length=self._by_length)
        insort(self._levels, level)
        return lane

    def add_all(self, rows: Iterable[Row]) -> None:
        """As `add`, of many rows at once: those of a unit nearly always come in order."""
        for level, group in groupby(rows, key=_level):
            lane = self._lanes.get(level)
            if lane is None:
                lane = self._open(level)
            come = sorted(group, key=_order)
            absent = [row for row in come if not lane.stands(row)] if lane.picked else come
            if absent:
                _put_in(lane.rows, absent)
            self.count += len(come)
            going = sum(row.started for row in come)
            self.going += going
            if lane.by_length is None:
                lane.count += len(come)
                lane.going += going
            else:
                for row in come:
                    lane.note(row)
            if self._edf:
                self._note_arrivals(come)

    def add_retry(self, group: list[Row]) -> None:
        """Put a group before the other rows of its priority: it runs as one unit."""
        for row in group:
            row.grouped = True
        self._place(group)
        self.count += len(group)
        self.going += sum(row.started for row in group)

    def _place(self, group: list[Row]) -> None:
        self._retries.insert(bisect_left(self._retries, rank(group[0]), key=_group_rank), group)

    def forget(self, row: Row) -> None:
        """A waiting row has lost its call; it is passed over from now on. Called before the row gives its room back."""
        self.count -= 1
        self.going -= row.started
        if not row.grouped:
            self._lanes[row.call.klass, row.call.priority].lose(row)
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
        return count + sum(_waits(row) and _level(row) <= level for group in self._retries for row in group)

    def head(self) -> Row | None:
        """The row that goes first, or None."""
        row = self._lane_head()
        group = self._retry_head()
        if group is None:
            return row
        return group[0] if row is None or rank(group[0]) <= rank(row) else row

    def oldest(self) -> int:
        """Arrival of the row that has waited longest outside retry groups; call only while `free_count` is not 0."""
        if self._edf:
            while not self._stands(self._arrivals[0][2]):
                heappop(self._arrivals)
            return self._arrivals[0][0]
        heads = (lane.head() for lane in self._lanes.values())
        return min(row.order[0] for row in heads if row is not None)

    def _stands(self, row: Row) -> bool:
        """Whether a row that came here waits here still, outside retry groups."""
        return _waits(row) and row.stage == self.key[1] and not row.grouped

    def _note_arrivals(self, rows: Iterable[Row]) -> None:
        """Rows that came back are noted again, so the heap is rebuilt when most of it is old."""
        heap = self._arrivals
        for row in rows:
            heappush(heap, (row.call.arrived, row.order[1], row))
        if len(heap) > 2 * self.count + _SLACK:
            rows = {id(row): row for _, _, row in heap if self._stands(row)}.values()
            heap[:] = [(row.call.arrived, row.order[1], row) for row in rows]
            heapify(heap)

    def take_retry(self, most: int, room: int) -> list[Row]:
        """Take rows of the group to run again whose turn it is; none if a row of a better priority goes first.

        At most `most` rows, and `room` that hold nothing on the device yet. Rows for which there is no room are passed
        over, and whole groups of them: those behind may hold the room. The rest of the group stays in its place.
        """
        if not self._retries:
            return []
        best: tuple[Rank, list[Row], list[Row]] | None = None
        for group in self._retries:
            able = _able(group, most, room)
            if able and (best is None or rank(able[0]) < best[0]):
                best = rank(able[0]), group, able
        row = next(self.first(1, room), None)
        if best is None or (row is not None and rank(row)[:2] < best[0][:2]):
            return []
        _, group, able = best
        self._retries = deque(other for other in self._retries if other is not group)
        for row in able:
            row.grouped = False
        left = [row for row in group if row.grouped and _waits(row)]
        if left:
            self._place(left)
        self.count -= len(able)
        self.going -= sum(row.started for row in able)
        return able

    def take(self, n: int, room: int) -> list[Row]:
        """Take the first `n` rows outside retry groups, or fewer where fewer wait; at most `room` that start anew.

        Rows for which there is no room are passed over: behind them may stand rows that hold the room.
        """
        taken: list[Row] = []
        for level in self._levels:
            lane = self._lanes[level]
            rows = lane.rows
            passed: list[Row] = []
            before, going = len(taken), lane.going
            while rows and len(taken) < n and (room > 0 or going):
                row = rows.popleft()
                if not (lane.has(row) if lane.picked else row.call.alive):
                    continue
                if row.started:
                    going -= 1
                    taken.append(row)
                elif room > 0:
                    room -= 1
                    taken.append(row)
                else:
                    passed.append(row)
            self.going -= lane.going - going
            if lane.by_length is None:
                lane.count -= len(taken) - before
                lane.going = going
            else:
                for row in taken[before:]:
                    lane.lose(row)
            rows.extendleft(reversed(passed))
            if len(taken) == n:
                break
        self.count -= len(taken)
        return taken

    def first(self, n: int, room: int) -> Iterator[Row]:
        """The rows that `take` would take, which stay where they are."""
        for level in self._levels:
            lane = self._lanes[level]
            going = lane.going
            for row in lane.rows:
                if n == 0 or not (room > 0 or going):
                    break
                if not (lane.has(row) and (row.started or room > 0)):
                    continue
                n -= 1
                room -= not row.started
                going -= row.started
                yield row

    @property
    def retries(self) -> bool:
        """Whether groups wait that must be run again."""
        return bool(self._retries)

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
        return max([*lengths, *(row.length for row in self.again())], default=0)

    def alike(self, most: int) -> Alike | None:
        """The first row, and up to `most` on either side of it in order of length; of a set that is sorted so.

        None while a group must be run again.
        """
        row = None if self._retries else self._lane_head()
        if row is None:
            return None
        lane = self._lanes[_level(row)]
        by_length, place = lane.by_length, lane.place(row)
        assert by_length is not None
        first = max(0, place - most)
        lengths = [entry[0] for entry in by_length[first : place + most + 1]]
        return Alike(lengths, place - first, lane.count, lane.total, by_length[0][0], by_length[-1][0])

    def beside(self, n: int, shorter: int) -> list[Row]:
        """`n` rows next to one another in the order of length, which stay where they are.

        The first row in the order of service is one of them, and `shorter` of them come before it.
        """
        row = self._lane_head()
        assert row is not None
        lane = self._lanes[_level(row)]
        assert lane.by_length is not None
        first = lane.place(row) - shorter
        return [entry[2] for entry in lane.by_length[first : first + n]]

    def take_beside(self, n: int, shorter: int) -> list[Row]:
        """Take the rows of `beside`; in the order of service, as every unit has them."""
        self._tidy()  # of rows taken before, which run by now; those taken now still look as if they waited
        taken = self.beside(n, shorter)
        lane = self._lanes[_level(taken[0])]
        assert lane.by_length is not None
        first = lane.place(taken[0])
        del lane.by_length[first : first + n]
        going = sum(row.started for row in taken)
        lane.count -= n
        lane.going -= going
        lane.total -= sum(row.length for row in taken)
        lane.picked = True
        self.count -= n
        self.going -= going
        return sorted(taken, key=_order)

    @property
    def free_count(self) -> int:
        """Rows that a policy may cut: outside retry groups, and of a better priority than the first of these.

        If the first retry group does not fit, every other row counts: those behind it may hold the room it needs.
        """
        group = self._retry_head() if self._retries else None
        if group is None:
            return self.count
        first = _level(group[0])
        better = sum(lane.count for level, lane in self._lanes.items() if level < first)
        return better or sum(lane.count for lane in self._lanes.values())

    def again(self) -> Iterator[Row]:
        """The rows that wait in groups that must be run again."""
        for group in self._retries:
            yield from filter(_waits, group)

    def rows(self) -> Iterator[Row]:
        """All rows that wait, in no particular order."""
        yield from self.again()
        for lane in self._lanes.values():
            yield from filter(lane.has, lane.rows)

    def _lane_head(self) -> Row | None:
        for level in self._levels:
            row = self._lanes[level].head()
            if row is not None:
                return row
        return None

    def _retry_head(self) -> list[Row] | None:
        while self._retries:
            group = self._retries.popleft()
            waiting = [row for row in group if _waits(row)]
            if waiting:
                self._place(waiting)
                if waiting[0] is group[0]:
                    return waiting
        return None


def _able(group: list[Row], most: int, room: int) -> list[Row]:
    """The rows of a group that may run now: those that hold room already, and as many more as there is room for."""
    able: list[Row] = []
    for row in filter(_waits, group):
        if len(able) < most and (row.started or room > 0):
            room -= not row.started
            able.append(row)
    return able


def _put_in(rows: deque[Row], come: list[Row]) -> None:
    """Put rows that are in order into a deque in order, at a cost of the shorter way to their place."""
    first, last = come[0].order, come[-1].order
    left: list[Row] = []
    right: list[Row] = []
    while rows and rows[0].order < last and rows[-1].order > first:
        left.append(rows.popleft())
        if rows:
            right.append(rows.pop())
    if not rows:
        rows.extend(sorted([*left, *come, *right], key=_order))
    elif rows[0].order >= last:
        rows.extendleft(sorted([*left, *come], key=_order, reverse=True))
        rows.extend(reversed(right))
    else:
        rows.extend(sorted([*come, *right], key=_order))
        rows.extendleft(reversed(left))


def _group_rank(group: list[Row]) -> Rank:
    return rank(group[0])
