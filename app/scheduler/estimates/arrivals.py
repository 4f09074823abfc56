"""When the next call of a client that calls at a regular rate is to come.

Best-effort work that begins just before such a call makes it wait for nothing (`gate`). Calls of several clients, or at
random, are not regular, and then nothing is expected.
"""

from __future__ import annotations

_WEIGHT = 0.2  # of one gap in the mean and in the deviation
_GAPS = 8  # that must have been seen
_REGULAR = 0.125  # of the mean gap: the largest mean deviation of calls that count as regular


class Arrivals:
    """Of one program. Nanoseconds."""

    __slots__ = ("_deviation", "_gaps", "_last", "_mean")

    def __init__(self, first: int) -> None:
        self._last = first
        self._mean = self._deviation = 0.0
        self._gaps = 0

    def arrive(self, at: int) -> None:
        """A call has come."""
        gap = at - self._last
        self._last = at
        self._gaps += 1
        weight = max(_WEIGHT, 1 / self._gaps)
        self._deviation += weight * (abs(gap - self._mean) - self._deviation) if self._gaps > 1 else 0.0
        self._mean += weight * (gap - self._mean)

    def expected(self, now: int) -> tuple[int, int] | None:
        """From when to when the next call is expected; None where calls are not regular, or the call is overdue."""
        if self._gaps < _GAPS or self._deviation > _REGULAR * self._mean:
            return None
        due = self._last + self._mean
        until = int(due + 3 * self._deviation)
        return (max(now, int(due - self._deviation)), until) if now < until else None
