"""The arrival-rate monitor: rows per second over the last closed window (Khan et al., BatchMonitor).

A window of one second counts 300 arrivals to within 6 %, seven to within 40 %: enough to say that something has
changed, too little to choose a control table by. So there is a second figure, `steady`, the mean over windows since the
last change: a window off by more than three standard deviations of a Poisson count begins it anew.
"""

from __future__ import annotations

from math import sqrt

_DEVIATIONS = 3.0
_LEAST_WEIGHT = 0.1  # of a window in `steady`: what changes too slowly to be seen in one window is followed in ten


class RateMonitor:
    """Counts arrivals; a tick closes the window. The count divides by the window's true length, not the nominal one."""

    __slots__ = ("_count", "_opened", "_windows", "rate", "steady")

    def __init__(self, now: int) -> None:
        self._opened = now
        self._count = 0
        self._windows = 0  # in `steady`
        self.rate = 0.0  # rows per second
        self.steady = 0.0  # rows per second

    def arrive(self, rows: int) -> None:
        self._count += rows

    def tick(self, now: int) -> None:
        elapsed = now - self._opened
        if elapsed <= 0:
            return
        self.rate = self._count * 1e9 / elapsed
        expected = self.steady * elapsed / 1e9
        # One more than expected: where hardly anything is, a single arrival is no change.
        if abs(self._count - expected) > _DEVIATIONS * sqrt(expected + 1):
            self._windows = 0
        self._windows += 1
        self.steady += max(_LEAST_WEIGHT, 1 / self._windows) * (self.rate - self.steady)
        self._count = 0
        self._opened = now
