"""Groups of rows whose unit failed: each must be run again as one unit."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterator

from app.scheduler.rows.lanes import Level, Rank, level_of, rank
from app.scheduler.types import Row, RowState


class Retries:
    """The groups of one ready set, in order of their first rows. Rows of calls that have left are passed over."""

    __slots__ = ("groups",)

    def __init__(self) -> None:
        self.groups: deque[list[Row]] = deque()

    def add(self, group: list[Row]) -> None:
        for row in group:
            row.grouped = True
        self._insert(group)

    def head(self) -> list[Row] | None:
        """The rows of the first group that wait."""
        while self.groups:
            group = self.groups.popleft()
            waiting = [row for row in group if waits(row)]
            if waiting:
                self._insert(waiting)
                if waiting[0] is group[0]:
                    return waiting
        return None

    def rows(self) -> Iterator[Row]:
        """All that wait."""
        for group in self.groups:
            yield from filter(waits, group)

    def before(self, level: Level) -> int:
        """How many wait at this level or a better one."""
        return sum(level_of(row) <= level for row in self.rows())

    def take(self, most: int, room: int, other: Row | None) -> list[Row]:
        """Take the rows of the group whose turn it is; none if `other` has a better priority.

        At most `most` rows, and `room` that have not started. Rows for which there is no room are passed over, and
        whole groups of them: those behind may hold the room. The rest of the group stays in its place.
        """
        best: tuple[Rank, list[Row], list[Row]] | None = None
        for group in self.groups:
            able = _able(group, most, room)
            if able and (best is None or rank(able[0]) < best[0]):
                best = rank(able[0]), group, able
        if best is None or (other is not None and level_of(other) < best[0][:2]):
            return []
        _, group, able = best
        self.groups = deque(other for other in self.groups if other is not group)
        for row in able:
            row.grouped = False
        left = [row for row in group if row.grouped and waits(row)]
        if left:
            self._insert(left)
        return able

    def _insert(self, group: list[Row]) -> None:
        self.groups.insert(bisect_left(self.groups, rank(group[0]), key=lambda other: rank(other[0])), group)


def waits(row: Row) -> bool:
    return row.call.alive and row.state is RowState.WAITING


def _able(group: list[Row], most: int, room: int) -> list[Row]:
    """The rows of a group that may run now: those that have started, and as many more as there is room for."""
    able: list[Row] = []
    for row in filter(waits, group):
        if len(able) < most and (row.started or room > 0):
            room -= not row.started
            able.append(row)
    return able
