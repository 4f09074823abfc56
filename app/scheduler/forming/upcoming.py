"""When the next real-time rows can start that do not wait yet or cannot start yet: best-effort units may run until
then.

A policy holds rows until a known time, and calls that arrive at a regular rate are expected at one. A best-effort unit
may start if it is predicted to end by then. A unit of one row that would end later may still start if no best-effort
unit could for `_PATIENCE` times its predicted time: otherwise a device that only holds rows would stay idle.

Real-time rows for which the device has no room do not count, because best-effort rows must run to free that room.
"""

from __future__ import annotations

from app.scheduler.rows.ready import ReadySet

_PATIENCE = 10  # so units that end too late take at most a tenth of the time in which real-time rows are held

_WEIGHT = 0.2  # of one gap between calls, in the running mean and deviation
_GAPS = 8  # gaps that must have been seen before a call is expected
_REGULAR = 0.125  # of the mean gap: the largest mean deviation of calls that count as regular


class Upcoming:
    """The real-time rows of one device that cannot start yet, and the calls expected."""

    def __init__(self) -> None:
        self._blocked: list[ReadySet] = []  # in this step, for want of room
        self._held: dict[ReadySet, tuple[int, int]] = {}  # until when, and how many rows
        self._arrivals: dict[int, RegularArrivals] = {}  # of real-time calls, by program
        self._refused: int | None = None  # since when no best-effort unit could start because of upcoming rows

    def begin_step(self, now: int) -> None:
        """A new step begins."""
        if self._blocked:
            self._blocked = []
        if self._held:
            self._held = {ready: held for ready, held in self._held.items() if now < held[0]}

    def block(self, ready: ReadySet) -> None:
        self._blocked.append(ready)

    def hold(self, ready: ReadySet, until: int | None) -> None:
        if until is None:
            self._held.pop(ready, None)
        else:
            self._held[ready] = until, ready.count

    def realtime_arrived(self, program: int, at: int) -> None:
        if program in self._arrivals:
            self._arrivals[program].observe(at)
        else:
            self._arrivals[program] = RegularArrivals(at)

    def forget(self, program: int) -> None:
        self._arrivals.pop(program, None)

    @property
    def waiting(self) -> int:
        """Waiting real-time rows that cannot start. Rows that arrived after a hold began may end it, and do not
        count.
        """
        held = sum(min(count, ready.count) for ready, (_, count) in self._held.items())
        return held + sum(ready.count for ready in self._blocked)

    def starts_at(self, now: int) -> int | None:
        """When the first real-time rows that are held or expected may start; None if there are none."""
        held = (until for ready, (until, _) in self._held.items() if ready.count)
        return min((*held, *(soonest for soonest, _ in self._expected(now))), default=None)

    def wait_until(self, time: int, now: int) -> int | None:
        """Until when a unit that would end too late must wait, by its predicted time; None: it may start."""
        if self._refused is None:
            self._refused = now
        until = self._refused + _PATIENCE * time
        return min((until, *(latest for _, latest in self._expected(now)))) if now < until else None

    def best_effort_started(self) -> None:
        self._refused = None

    def _expected(self, now: int) -> list[tuple[int, int]]:
        found = (arrivals.expected(now) for arrivals in self._arrivals.values())
        return [window for window in found if window is not None]


class RegularArrivals:
    """Predicts the next call of one program whose client calls at a regular rate. Times in nanoseconds.

    Calls of several clients, or at random, are not regular: then nothing is expected.
    """

    __slots__ = ("_deviation", "_gaps", "_last", "_mean")

    def __init__(self, first: int) -> None:
        self._last = first
        self._mean = self._deviation = 0.0
        self._gaps = 0

    def observe(self, at: int) -> None:
        gap = at - self._last
        self._last = at
        self._gaps += 1
        weight = max(_WEIGHT, 1 / self._gaps)
        self._deviation += weight * (abs(gap - self._mean) - self._deviation) if self._gaps > 1 else 0.0
        self._mean += weight * (gap - self._mean)

    def expected(self, now: int) -> tuple[int, int] | None:
        """Between which times the next call is expected; None if calls are not regular, or the call is overdue."""
        if self._gaps < _GAPS or self._deviation > _REGULAR * self._mean:
            return None
        due = self._last + self._mean
        until = int(due + 3 * self._deviation)
        return (max(now, int(due - self._deviation)), until) if now < until else None
