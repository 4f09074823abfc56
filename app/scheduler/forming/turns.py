"""Fair sharing of device time: among best-effort programs, and between the two classes.

Programs take turns by predicted time, not by units: start-time fair queueing (Goyal, Vin and Cheng, 1996) with equal
weights. Each unit has a tag, the virtual time at which it starts: the tag of the unit served last, or the end of its
program's last unit if that is later. The smallest tag is served first. A program that was idle starts at the present
virtual time, so it cannot save up time.
"""

from __future__ import annotations

from app.scheduler.types import Klass


class Turns:
    """The tags of programs. Virtual time is in nanoseconds."""

    __slots__ = ("_ends", "_now")

    def __init__(self) -> None:
        self._now = 0
        self._ends: dict[int, int] = {}  # by program, of the last unit

    def tag(self, program: int) -> int:
        """The tag of the program's next unit."""
        return max(self._now, self._ends.get(program, 0))

    def take(self, program: int, time_ns: int) -> None:
        """A unit starts. If its predicted time is unknown (0), it counts as 1, so turns are by units."""
        self._now = self.tag(program)
        self._ends[program] = self._now + max(1, time_ns)

    def correct(self, program: int, by_ns: int) -> None:
        """The program's last units took so much longer than predicted."""
        self._ends[program] = self._ends.get(program, 0) + by_ns

    def forget(self, program: int) -> None:
        self._ends.pop(program, None)


class Share:
    """The classes take turns, each weighted with its part of the device's time.

    As in `Turns`, a class that was idle starts at the present virtual time. So best-effort work saves up no time while
    none of it waits, and owes none for what it ran while there was no real-time work. What it ran beyond its part
    beside real-time work does count.
    """

    __slots__ = ("_counted", "_parts", "_turns")

    def __init__(self, part: float) -> None:
        """`part`: of the device's time, 0 to 1, that best-effort work gets while some of it waits."""
        self._parts = (1 - part, part)
        self._turns = Turns()
        self._counted: dict[int, int] = {}  # by unit that has not ended: the time that it was counted with

    def start(self, unit: int, klass: Klass, predicted_ns: int) -> None:
        """A unit starts."""
        self._counted[unit] = predicted_ns
        self._turns.take(klass, self._weighed(klass, predicted_ns))

    def end(self, unit: int, klass: Klass, took_ns: int) -> None:
        """It has ended, or was not handed over after all: replace the predicted time by the actual one."""
        if (predicted_ns := self._counted.pop(unit, None)) is not None:
            self._turns.correct(klass, self._weighed(klass, took_ns - predicted_ns))

    @property
    def due(self) -> bool:
        """Whether best-effort work is served before real-time work now."""
        return self._parts[1] > 0 and self._turns.tag(Klass.BEST_EFFORT) < self._turns.tag(Klass.REALTIME)

    def _weighed(self, klass: Klass, time_ns: int) -> int:
        part = self._parts[klass]
        return int(time_ns / part) if part else time_ns
