"""Whose turn it is among best-effort programs, and when best-effort work goes before real-time work.

Programs take turns by predicted time, not by units: start-time fair queueing (Goyal, Vin and Cheng, 1996) with equal
weights. Each unit has a tag, the virtual time at which it starts: that of the unit served last, or the end of its
program's last one where this is later. The smallest tag goes first. A program that has had nothing to do begins at the
present, and so cannot save up time.
"""

from __future__ import annotations

from app.scheduler.types import Klass


class Turns:
    """Virtual time in nanoseconds."""

    __slots__ = ("_ends", "_now")

    def __init__(self) -> None:
        self._now = 0
        self._ends: dict[int, int] = {}  # by program, of the last unit

    def tag(self, program: int) -> int:
        """Where the next unit of a program starts."""
        return max(self._now, self._ends.get(program, 0))

    def take(self, program: int, time_ns: int) -> None:
        """A unit of so many predicted nanoseconds starts; where none are known, turns go by units."""
        self._now = self.tag(program)
        self._ends[program] = self._now + max(1, time_ns)

    def forget(self, program: int) -> None:
        self._ends.pop(program, None)


class Share:
    """Device time of both classes since best-effort rows have been waiting without a pause.

    While none wait nothing is owed, so that the share is no credit for the time in which nobody asked for it.
    """

    __slots__ = ("_counted", "_given", "_part")

    def __init__(self, part: float) -> None:
        """`part`: of the device's time, 0 to 1, that best-effort work has while it waits."""
        self._part = part
        self._given = [0, 0]  # nanoseconds by class
        self._counted: dict[int, int] = {}  # units that have not ended: as what they were counted

    def start(self, unit: int, klass: Klass, predicted_ns: int, *, best_effort_waits: bool) -> None:
        """A unit starts, of which best-effort rows that wait were not part."""
        if not self._part:
            return
        if best_effort_waits:
            self._given[klass] += predicted_ns
            self._counted[unit] = predicted_ns
        else:
            self._given = [0, 0]
            self._counted.clear()

    def end(self, unit: int, klass: Klass, took_ns: int) -> None:
        """It has ended, or was taken back: the prediction is put right."""
        if (predicted_ns := self._counted.pop(unit, None)) is not None:
            self._given[klass] += took_ns - predicted_ns

    @property
    def due(self) -> bool:
        """Whether best-effort work has had less than its share."""
        realtime, best_effort = self._given
        return bool(self._part) and best_effort * (1 - self._part) < realtime * self._part
