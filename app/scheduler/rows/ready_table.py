"""The ready table: the rows that wait on a device, by key and class, and which of its sets goes first.

The oldest head first is what keeps one busy model from starving another: a row of the quiet model is served as soon as
the rows that came before it are. (Fast models may overtake within bounds, see `forming.models`.) A lower priority can
wait for ever behind a higher one; that is what it asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from app.scheduler.rows.ready import Key, Level, ReadySet
from app.scheduler.types import Klass, Row

#: Which set goes first, by its first row: the smaller.
Ranking = Callable[[ReadySet, Row], tuple[int, ...]]


class ReadyTable:
    """All ready sets of a device, by key and class. Sets of no program are dropped with it.

    What a step asks is looked up among the sets in which rows wait: most of many programs have none.
    """

    def __init__(self, *, edf: bool = False) -> None:
        self._edf = edf
        self._sets: dict[tuple[Key, Klass], ReadySet] = {}
        self._again: dict[int, ReadySet] = {}  # of rows that run again as one unit: by `Row.group`
        self._groups = 0
        self.nonempty: dict[ReadySet, None] = {}  # those in which rows wait: each enters and leaves it by itself

    def at(self, key: Key, klass: Klass) -> ReadySet:
        ready = self._sets.get((key, klass))
        if ready is None:
            ready = self._sets[key, klass] = ReadySet(key, klass, edf=self._edf, nonempty=self.nonempty)
        return ready

    def add_again(self, key: Key, klass: Klass, rows: Sequence[Row]) -> None:
        """Rows whose unit failed wait to run again as one unit."""
        self._again = {group: ready for group, ready in self._again.items() if ready.count}
        self._groups += 1
        ready = ReadySet(key, klass, edf=self._edf, again=True, nonempty=self.nonempty)
        self._again[self._groups] = ready
        for row in rows:
            row.group = self._groups
        ready.put_back(rows)

    def forget(self, row: Row, key: Key) -> None:
        """The call of a row that waits at this key has left. Called before its room on the device is freed."""
        (self._again[row.group] if row.group else self._sets[key, row.call.klass]).forget(row)

    def first(self, held: Collection[ReadySet], ranking: Ranking) -> ReadySet | None:
        """The set to serve next in this order among those not held back, or None."""
        best: ReadySet | None = None
        if len(self.nonempty) == 1:  # most often; nothing is compared
            (best,) = self.nonempty
            return None if best in held else best
        best_rank: tuple[int, ...] | None = None
        for ready in self.nonempty:
            if ready in held:
                continue
            own = self.rank(ready, ranking)
            if best_rank is None or own < best_rank:
                best, best_rank = ready, own
        return best

    def rank(self, ready: ReadySet, ranking: Ranking) -> tuple[int, ...]:
        """The rank of a set in which rows wait.

        Rows that run again go before all others of their key and priority: the bad row among them is soon found, and
        those that ran well join the others again.
        """
        row = ready.head()
        own = best = ranking(ready, row)
        if ready.again:
            others = self._sets[ready.key, ready.klass]
            if others.count and others.head().order[0] == row.order[0]:
                best = min(own, ranking(others, others.head()))
        return (*best, not ready.again, *own)

    def behind(self, ready: ReadySet) -> list[ReadySet]:
        """Rows of a set's key that run again and have a lower priority: they do not start while a policy holds it."""
        others = (other for other in self._again.values() if other.count)
        alike = [other for other in others if (other.key, other.klass) == (ready.key, ready.klass)]
        return [other for other in alike if other.head().order[0] > ready.head().order[0]]

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
        """Arrival of the row that has waited longest, of those of a program and a class; None where none waits."""
        return min((ready.oldest() for ready in self.of_program(program, klass)), default=None)

    def drop_program(self, program: int) -> None:
        for place in [place for place in self._sets if place[0][0] == program]:
            self.nonempty.pop(self._sets.pop(place), None)
