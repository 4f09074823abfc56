"""A simulator's Device whose units, while several run, all slow down by the same factor."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.scheduler.types import Unit


class EquallySlowed:
    """`alone_ns`: the time of a unit alone; `slowdown`: the factor for units that run at once.

    Each worker has one unit at a time. Since all slow down alike, units end in order on a clock that slows down by it.
    """

    def __init__(self, alone_ns: Callable[[Unit], float], slowdown: Callable[[Sequence[Unit]], float]) -> None:
        self.step_times: tuple[int, ...] = ()
        self.due: int | None = None
        self.busy_ns = 0
        self.unit_ns = 0
        self._alone_ns = alone_ns
        self._slowdown = slowdown
        self._clock = 0.0  # nanoseconds at full speed
        self._slow = 1.0
        self._seen = 0
        #: (end on the clock, unit id, unit, when it began, and on the clock)
        self._running: list[tuple[float, int, Unit, int, float]] = []

    def push(self, unit: Unit, now: int) -> None:
        self._pass(now)
        self._running.append((self._clock + self._alone_ns(unit), unit.id, unit, now, self._clock))
        self._plan(now)

    def pop(self, now: int) -> tuple[Unit, int]:
        self._pass(now)
        ended = min(self._running)
        self._running.remove(ended)
        self._plan(now)
        self.unit_ns += now - ended[3]
        return ended[2], now - ended[3]

    def _pass(self, now: int) -> None:
        elapsed = now - self._seen
        self._seen = now
        if self._running:
            self.busy_ns += elapsed
            self._clock += elapsed / self._slow

    def _plan(self, now: int) -> None:
        if not self._running:
            self.due = None
            return
        self._slow = self._slowdown([entry[2] for entry in self._running])
        left = min(self._running)[0] - self._clock
        self.due = now + max(1, round(left * self._slow))
