"""What is counted of one program: its rows and calls, and what arrives of each class.

A queue is bounded to the rows that can be served before their callers give up. How long callers wait is learnt from
those who leave. Calls beyond the bound are refused at once; while nobody leaves, it grows up to the program's
`max_queue` (docs/theory/order-and-share.md).
"""

from __future__ import annotations

from app.scheduler.rows.ready import Level
from app.scheduler.types import Klass, Program

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


class Queue:
    """Lists have a value for each class. Only the ledger, the outcomes and the scheduler change them."""

    __slots__ = ("alive", "asked", "calls", "demand_ns", "ended", "hints", "most", "patience", "waiting")

    def __init__(self, program: Program, now: int) -> None:
        self.most = program.max_queue  # rows that may wait, of each class
        self.alive = 0  # rows that have started and not ended
        self.waiting = [0 for _ in Klass]  # rows in the ready table
        self.calls = 0  # calls that have not left
        # in this window: rows that arrived (refused ones included), and rows that ended well
        self.asked, self.ended = [0 for _ in Klass], [0 for _ in Klass]
        self.demand_ns = [0 for _ in Klass]  # device time that all rows so far need in full batches
        self.patience = [Patience(program.max_queue, program.max_batch, now) for _ in Klass]
        #: By level: (valid until, Retry-After in nanoseconds), see `admission`.
        self.hints: dict[Level, tuple[int, int]] = {}

    def takes(self, rows: int, klass: Klass) -> bool:
        """Whether so many more may wait: within `max_queue`, and as long as callers have patience."""
        waiting = self.waiting[klass]
        return waiting + rows <= self.most and waiting < self.patience[klass].bound

    def tick(self, now: int) -> int:
        """A window has closed: judge the callers' patience by the rows that ended in it. Returns how many did."""
        for patience, rows in zip(self.patience, self.ended, strict=True):
            patience.tick(now, rows)
        ended = sum(self.ended)
        self.ended = [0 for _ in Klass]
        return ended

    def add_demand(self, row_ns: float) -> None:
        """Rows of this window need so much device time each, and the next window begins."""
        for klass, rows in zip(Klass, self.asked, strict=True):
            self.demand_ns[klass] += round(rows * row_ns)
        self.asked = [0 for _ in Klass]
