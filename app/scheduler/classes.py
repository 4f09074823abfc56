"""Real-time work before best-effort work (REEF, on stage boundaries).

The scheduler is in real-time mode while a real-time row waits or runs, else in normal mode. What is handed to a device
cannot be taken back but at a boundary, so what is handed over of best-effort work is small:

    normal mode      best-effort units start while all of them that were handed over and have not ended are predicted
                     to take at most the budget; one at a time where even one takes longer. A unit that its worker
                     goes on with by itself counts with the stage or step that runs, at which it can be recalled.
                     Of several workers one is kept free of them.
    real-time mode   none starts, unless both rules hold (dynamic kernel padding, by admission):
                     1. it is predicted to end no later than some real-time unit that runs, or within the budget
                     2. the pair's profile says that it slows that unit's program by no more than the bound
                     and no real-time row waits that the free worker could be given

Best-effort rows go on where they were, at the next stage or step. Between rows of one class nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from app.scheduler.types import Klass, Unit


class Mode(StrEnum):
    NORMAL = "normal"
    REALTIME = "realtime"


class Transition(NamedTuple):
    """One way for the mode to change."""

    event: str
    source: Mode
    target: Mode
    when: str


#: All ways for the mode to change.
TRANSITIONS = (
    Transition("arrive", Mode.NORMAL, Mode.REALTIME, "a real-time row comes"),
    Transition("arrive", Mode.REALTIME, Mode.REALTIME, "another one comes"),
    Transition("end", Mode.REALTIME, Mode.REALTIME, "other real-time rows wait or run"),
    Transition("end", Mode.REALTIME, Mode.NORMAL, "no real-time row waits or runs any more"),
)

#: By how much a unit of the second program beside one of the first slows the first, 0.02 for 2 %; None: not measured.
Beside = Callable[[int, int], float | None]


class Limits(NamedTuple):
    """What best-effort work may cost: nanoseconds handed over, and a share of a real-time unit's time."""

    budget_ns: int
    slowdown: float


def mode(realtime_waits: bool, running: Iterable[Unit]) -> Mode:
    """The mode, given what waits and runs."""
    return Mode.REALTIME if realtime_waits or any(is_realtime(unit) for unit in running) else Mode.NORMAL


def is_realtime(unit: Unit) -> bool:
    """Of its class are all rows of a unit, but for best-effort ones that fill its padding."""
    return unit.rows[0].call.klass is Klass.REALTIME


def handed_over_ns(running: Iterable[Unit], now: int) -> int:
    """Predicted time of best-effort units until they have ended or can be recalled, added up."""
    return sum(left_ns(unit, now) for unit in running if not is_realtime(unit))


def left_ns(unit: Unit, now: int) -> int:
    """Predicted time until a unit has ended, or has reached its next boundary where it can be recalled."""
    if unit.steps == 1 or unit.recalled:
        return max(0, unit.begins + unit.predicted - now) if unit.begins <= now else unit.predicted
    step = unit.predicted // unit.steps
    return step - (now - unit.begins) % step if step and now > unit.begins else step


class Gate:
    """Whether a best-effort unit may start, and on which workers."""

    def __init__(self, limits: Limits, workers: int, max_running: int, beside: Beside) -> None:
        self._limits = limits
        self._most = max(1, min(workers, max_running) - 1)  # workers with best-effort work at a time
        self._beside = beside

    def workers(
        self,
        usable: Sequence[int],
        program: int,
        predicted: int,
        running: Sequence[Unit],
        realtime_waits: bool,
        now: int,
    ) -> Sequence[int]:
        """Of the workers that may be handed a unit now, those that may be given this best-effort one; none: not yet.

        `predicted`: nanoseconds until it ends, or can be recalled. `realtime_waits`: a real-time row does.
        """
        theirs = {unit.worker for unit in running if not is_realtime(unit)}
        if len(theirs) >= self._most:
            usable = [worker for worker in usable if worker in theirs]
        if not usable:
            return ()
        if mode(realtime_waits, running) is Mode.REALTIME:
            fits = not realtime_waits and self._pads(program, predicted, running, now)
            return usable if fits else ()
        handed = handed_over_ns(running, now)
        return usable if not theirs or handed + predicted <= self._limits.budget_ns else ()

    def _pads(self, program: int, predicted: int, running: Sequence[Unit], now: int) -> bool:
        """Rules 1 and 2, against each real-time unit that runs."""
        theirs = [unit for unit in running if is_realtime(unit)]
        longest = max(left_ns(unit, now) for unit in theirs)
        handed = handed_over_ns(running, now)
        if predicted > longest and handed + predicted > self._limits.budget_ns:
            return False
        slowdowns = [self._beside(unit.program, program) for unit in theirs]
        return all(slower is not None and slower <= self._limits.slowdown for slower in slowdowns)
