"""Bounds a queue to the rows that can be served before their callers give up.

How long callers wait is learnt from those who leave. Calls beyond the bound are refused at once; while nobody leaves,
it grows up to the program's `max_queue` (docs/theory/order-and-share.md).
"""

from __future__ import annotations

_LONG = 2  # times the largest batch: callers do not leave because of a shorter queue, so it is never cut
_SHARE = 8  # at least one row leaves for so many that are served: fewer may leave for other reasons
_GROWTH = 50  # the bound grows by a fiftieth a window


class Patience:
    """The patience of the callers of one program and class. `bound`: rows that may wait now."""

    __slots__ = ("_largest", "_least", "_left", "_since", "_waited_ns", "bound")

    def __init__(self, max_queue: int, max_batch: int, now: int) -> None:
        self.bound = self._largest = max_queue
        self._least = min(max_queue, _LONG * max_batch)
        self._since = now
        self._left = self._waited_ns = 0

    def leave(self, rows: int, waited_ns: int, waiting: int) -> None:
        """A caller of so many rows has left after this time, while `waiting` rows of the class waited."""
        if waiting > self._least:
            self._left += rows
            self._waited_ns += rows * waited_ns

    def tick(self, now: int, served: int) -> None:
        """The rate monitor's window has closed. `served`: rows that ended well in it, callers gone or not."""
        window, left = now - self._since, self._left
        if window > 0 and served and left * _SHARE >= served:
            self.bound = min(self._largest, max(self._least, served * self._waited_ns // left // window // 2))
        elif self.bound < self._largest:
            self.bound = min(self._largest, self.bound + self.bound // _GROWTH + 1)
        self._since = now
        self._left = self._waited_ns = 0
