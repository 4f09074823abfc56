"""The ready table: the rows that wait on a device, by key and class."""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.rows.ready import Key, Level, ReadySet
from app.scheduler.types import Klass, Row


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
