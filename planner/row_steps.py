"""Simulates rows at a cell: their steps, and for a decoder the prompt tokens that they read first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from app.scheduler import prefill
from app.scheduler.estimates.profile import Profile
from app.scheduler.types import Row, Unit


@dataclass(slots=True, eq=False)
class Stepped(Row):
    """A row that makes `most` steps at each cell, of which it has `made` some at the current one.

    `unread`: prompt tokens left to read before its first step.
    """

    most: int = 0
    made: int = 0
    unread: int = 0


def ended(unit: Unit) -> tuple[int, ...]:
    """Count the steps of a unit of a cell. Returns the positions of the rows that have made their last one."""
    positions = []
    for position, row in enumerate(_stepped(unit)):
        if row.unread:
            continue
        row.made += unit.course.steps
        if row.made >= row.most:
            row.made = 0  # the next stage may be a cell as well
            positions.append(position)
    return tuple(positions)


class DecoderTimes:
    """The time of a unit of a decoder, in nanoseconds: reading prompts, piece by piece, and then one step.

    `profile`: of a stage that reads, with times by length, and a cell that writes. `step_ns`: the step's part of the
    last unit's time, 0 if its rows only read.
    """

    __slots__ = ("_budget", "_cell", "_readers", "_reads", "step_ns")

    def __init__(self, profile: Profile) -> None:
        self._reads, self._cell = profile.parts
        self._budget = prefill.PrefillBudget()
        self._readers: list[Stepped] = []  # rows that read together, until they have read all
        self.step_ns = 0

    def __call__(self, unit: Unit) -> int:
        rows = _stepped(unit)
        read_ns = self._read([row for row in rows if row.unread])
        going = [row.length + row.made for row in rows if not row.unread]
        self.step_ns = round(self._cell.time(len(going), max(going))) if going else 0
        return read_ns + self.step_ns

    def _read(self, new: list[Stepped]) -> int:
        """Have these rows read as long as the budget allows. Returns the time that it took."""
        spent = 0
        self._budget.start(self.step_ns)
        while new and (tokens := self._budget.tokens(min(new[0].length, prefill.LEAST))) is not None:
            if not self._readers or any(row not in new for row in self._readers):
                chosen = prefill.together([row.length for row in new], tokens)
                self._readers = [new[place] for place in chosen]
            rows = self._readers
            longest = max(row.length for row in rows)
            left = max(row.unread for row in rows)
            read = min(left, prefill.each(tokens, len(rows)))
            took = self._piece_ns(len(rows), longest - left, longest - left + read)
            for row in rows:  # padded in front: shorter rows start later, and all end together
                row.unread = min(row.unread, left - read)
            if read == left:
                new = [row for row in new if row.unread]
                self._readers = []
            self._budget.took(len(rows) * read, took)
            spent += took
        return spent

    def _piece_ns(self, rows: int, start: int, end: int) -> int:
        """The time to read tokens `start` to `end`. Each call of the model also costs the time of no tokens."""
        begun = self._time(rows, start) - self._time(rows, 0) if start else 0.0
        return max(1, round(self._time(rows, end) - begun))

    def _time(self, rows: int, length: int) -> float:
        """The time to read so many tokens. Below the profile's shortest length: on the line through its first two
        lengths, or through the origin.
        """
        (short, times), *longer = self._reads.by_length
        if length >= short:
            return self._reads.time(rows, length)
        least, slope = times[rows - 1], times[rows - 1] / short
        if longer:
            slope = min(slope, (longer[0][1][rows - 1] - least) / (longer[0][0] - short))
        return least - slope * (short - length)


def _stepped(unit: Unit) -> Sequence[Stepped]:
    return cast(Sequence[Stepped], unit.rows)
