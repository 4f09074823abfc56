"""All ready sets of a device."""

from __future__ import annotations

from app.scheduler.rows.ready import Key, Level, ReadySet
from app.scheduler.types import Klass


class ReadyTable:
    """All ready sets of a device, by key and class. Sets of no program are dropped with it."""

    def __init__(self, *, edf: bool = False) -> None:
        self._edf = edf
        self._sets: dict[tuple[Key, Klass], ReadySet] = {}

    def at(self, key: Key, klass: Klass) -> ReadySet:
        ready = self._sets.get((key, klass))
        if ready is None:
            ready = self._sets[key, klass] = ReadySet(key, klass, edf=self._edf)
        return ready

    def waiting(self) -> list[ReadySet]:
        """The sets in which rows wait."""
        return [ready for ready in self._sets.values() if ready.count]

    def of_program(self, program: int, klass: Klass) -> list[ReadySet]:
        """The sets of a program's rows of one class in which rows wait."""
        return [
            ready
            for (key, theirs), ready in self._sets.items()
            if key[0] == program and theirs is klass and ready.count
        ]

    def waiting_before(self, program: int, klass: Klass, level: Level) -> int:
        """Rows of a program and a class that wait at this level or a better one."""
        return sum(ready.before(level) for ready in self.of_program(program, klass))

    def waiting_by_stage(self, program: int, stages: int) -> list[int]:
        """Rows of a program that wait, for each of its stages."""
        counts = [0] * stages
        for ((owner, stage, _), _), ready in self._sets.items():
            if owner == program:
                counts[stage] += ready.count
        return counts

    def oldest(self, program: int, klass: Klass) -> int | None:
        """Arrival of the row that has waited longest, of those of a program and a class; None where none waits."""
        return min(
            (row.call.arrived for ready in self.of_program(program, klass) for row in ready.rows()), default=None
        )

    def drop_program(self, program: int) -> None:
        for key, klass in [place for place in self._sets if place[0][0] == program]:
            del self._sets[key, klass]
