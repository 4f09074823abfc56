"""The ready table: the rows that wait on a device, by key and class, and which of its sets goes first.

The oldest head first is what keeps one busy model from starving another: a row of the quiet model is served as soon as
the rows that came before it are. (Fast models may overtake within bounds, see `forming.models`.) A lower priority can
wait for ever behind a higher one; that is what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from app.scheduler.rows.lanes import Level
from app.scheduler.rows.ready import Key, ReadySet
from app.scheduler.types import Klass, Row

#: Which set goes first, by its first row: the smaller.
Order = Callable[[ReadySet, Row], tuple[int, ...]]


class ReadyTable:
    """All ready sets of a device, by key and class. Sets of no program are dropped with it.

    What a step asks is looked up among the sets in which rows wait: most of many programs have none.
    """

    def __init__(self, *, edf: bool = False) -> None:
        self._edf = edf
        self._sets: dict[tuple[Key, Klass], ReadySet] = {}
        self.nonempty: dict[ReadySet, None] = {}  # those in which rows wait: each enters and leaves it by itself

    def at(self, key: Key, klass: Klass) -> ReadySet:
        ready = self._sets.get((key, klass))
        if ready is None:
            ready = self._sets[key, klass] = ReadySet(key, klass, edf=self._edf, nonempty=self.nonempty)
        return ready

    def waiting(self) -> list[ReadySet]:
        """The sets in which rows wait."""
        return list(self.nonempty)

    def first(self, held: Collection[ReadySet], order: Order) -> ReadySet | None:
        """The set to serve next in this order among those not held back, or None."""
        best: ReadySet | None = None
        if len(self.nonempty) == 1:  # most often; nothing is compared
            (best,) = self.nonempty
            return None if best in held else best
        best_rank: tuple[int, ...] | None = None
        for ready in self.nonempty:
            if ready in held or (row := ready.head()) is None:
                continue
            own = order(ready, row)
            if best_rank is None or own < best_rank:
                best, best_rank = ready, own
        return best

    def of_program(self, program: int, klass: Klass) -> list[ReadySet]:
        """The sets of a program's rows of one class in which rows wait."""
        return [ready for ready in self.waiting() if ready.key[0] == program and ready.klass is klass]

    def waiting_before(self, program: int, klass: Klass, level: Level) -> int:
        """Rows of a program and a class that wait at this level or a better one."""
        return sum(ready.before(level) for ready in self.of_program(program, klass))

    def waiting_by_stage(self, program: int, stages: int) -> list[int]:
        """Rows of a program that wait, for each of its stages."""
        counts = [0] * stages
        for ready in self.waiting():
            owner, stage, _ = ready.key
            if owner == program:
                counts[stage] += ready.count
        return counts

    def oldest(self, program: int, klass: Klass) -> int | None:
        """Arrival of the row that has waited longest, of those of a program and a class; None where none waits."""
        return min(
            (row.call.arrived for ready in self.of_program(program, klass) for row in ready.rows()), default=None
        )

    def drop_program(self, program: int) -> None:
        for place in [place for place in self._sets if place[0][0] == program]:
            self.nonempty.pop(self._sets.pop(place), None)
