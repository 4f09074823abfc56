"""The arrival-rate monitor: rows per second over the last closed window (Khan et al., BatchMonitor)."""

from __future__ import annotations


class RateMonitor:
    """Counts arrivals; a tick closes the window. The count divides by the window's true length, not the nominal one."""

    __slots__ = ("_count", "_opened", "rate")

    def __init__(self, now: int) -> None:
        self._opened = now
        self._count = 0
        self.rate = 0.0  # rows per second

    def arrive(self, rows: int) -> None:
        self._count += rows

    def tick(self, now: int) -> None:
        elapsed = now - self._opened
        if elapsed <= 0:
            return
        self.rate = self._count * 1e9 / elapsed
        self._count = 0
        self._opened = now
