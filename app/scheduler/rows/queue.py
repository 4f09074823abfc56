"""What is counted of one program: its rows, calls and units on the device, and what arrives of each class."""

from __future__ import annotations

from app.scheduler.patience import Patience
from app.scheduler.rows.ready import Level
from app.scheduler.types import Klass, Program


class Queue:
    """Lists have a value for each class. Only the ledger, the outcomes and the scheduler change them."""

    __slots__ = ("alive", "asked", "calls", "demand_ns", "ended", "hints", "most", "patience", "units", "waiting")

    def __init__(self, program: Program, now: int) -> None:
        self.most = program.max_queue  # rows that may wait, of each class
        self.alive = 0  # rows that have started and not ended
        self.waiting = [0 for _ in Klass]  # rows in the ready table
        self.calls = 0  # calls that have not left
        self.units = 0  # handed to workers and not finished
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
