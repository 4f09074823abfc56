"""Rows of a cell: the steps that they make, and what those of a decoder read before them, as on the server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from app.scheduler import prefill
from app.scheduler.estimates.profile import ModelProfile
from app.scheduler.types import Row, Unit


@dataclass(slots=True, eq=False)
class Stepped(Row):
    """A row with the steps that it runs at each stage that repeats, and those that the device has run at this one.

    `unread`: tokens that it is still to read before its first step.
    """

    most: int = 0
    made: int = 0
    unread: int = 0


def ended(unit: Unit) -> tuple[int, ...]:
    """Positions of the rows of a unit of a cell that have made their last step at it. Counts the steps."""
    positions = []
    for position, row in enumerate(_stepped(unit)):
        if row.unread:
            continue
        row.made += unit.steps
        if row.made >= row.most:
            row.made = 0  # the next stage may repeat as well
            positions.append(position)
    return tuple(positions)


class DecoderTimes:
    """What units of a decoder take alone, in nanoseconds: a step, and what rows read before it, piece by piece.

    `profile`: of a stage that reads, with times by length, and a cell that writes. `step_ns`: of the last unit's step,
    0 if its rows only read.
    """

    __slots__ = ("_budget", "_cell", "_readers", "_reads", "step_ns")

    def __init__(self, profile: ModelProfile) -> None:
        self._reads, self._cell = profile.parts
        self._budget = prefill.PrefillBudget()
        self._readers: list[Stepped] = []  # those that read together, until all of it is read
        self.step_ns = 0

    def __call__(self, unit: Unit) -> int:
        rows = _stepped(unit)
        read_ns = self._read([row for row in rows if row.unread])
        going = [row.length + row.made for row in rows if not row.unread]
        self.step_ns = round(self._cell.time(len(going), max(going))) if going else 0
        return read_ns + self.step_ns

    def _read(self, new: list[Stepped]) -> int:
        """Have these rows read for as long as there is time. Returns how long that took."""
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
            for row in rows:  # padded in front: the shorter ones begin later, and all end together
                row.unread = min(row.unread, left - read)
            if read == left:
                new = [row for row in new if row.unread]
                self._readers = []
            self._budget.took(len(rows) * read, took)
            spent += took
        return spent

    def _piece_ns(self, rows: int, start: int, end: int) -> int:
        """Tokens `start` to `end` of so many rows, in one call of the model, which costs what no tokens would."""
        begun = self._time(rows, start) - self._time(rows, 0) if start else 0.0
        return max(1, round(self._time(rows, end) - begun))

    def _time(self, rows: int, length: int) -> float:
        """Below the shortest length of the profile on the line through it and the next, or through nothing."""
        (short, times), *longer = self._reads.by_length
        if length >= short:
            return self._reads.time(rows, length)
        least, slope = times[rows - 1], times[rows - 1] / short
        if longer:
            slope = min(slope, (longer[0][1][rows - 1] - least) / (longer[0][0] - short))
        return least - slope * (short - length)


def _stepped(unit: Unit) -> Sequence[Stepped]:
    return cast(Sequence[Stepped], unit.rows)
