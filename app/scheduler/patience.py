"""How many rows may wait: as many as are served before their callers leave.

In overload, serving in order of arrival answers nobody whose patience is shorter than the queue: each row reaches a
worker as its caller leaves. Callers do not say how long they wait, so it is learnt from those who leave. If in a window
of the rate monitor at least an eighth as many rows left a long queue as were served, the queue is cut to what is served
in half of the time that they had waited on average (Little's law). Calls beyond that are refused at once. While nobody
leaves, the bound grows by 2 % a window, up to the program's own.
"""

from __future__ import annotations

_LONG = 2  # largest batches: a shorter queue is not why callers leave, and is never refused
_SHARE = 8  # rows served for each that leaves: fewer leave for reasons of their own
_GROWTH = 50  # the bound grows by its fiftieth


class Patience:
    """Of the callers of one program and class. `bound`: rows that may wait now."""

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
        """The rate monitor's window has closed. `served`: rows that ended well in it, their callers there or not."""
        window, left = now - self._since, self._left
        if window > 0 and served and left * _SHARE >= served:
            self.bound = min(self._largest, max(self._least, served * self._waited_ns // left // window // 2))
        elif self.bound < self._largest:
            self.bound = min(self._largest, self.bound + self.bound // _GROWTH + 1)
        self._since = now
        self._left = self._waited_ns = 0
