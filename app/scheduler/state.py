"""What the scheduler keeps per program."""

from __future__ import annotations

from collections import deque

from .latency import Latency
from .policies import Policy
from .policies import make as make_policy
from .rate import RateMonitor
from .ready import ReadySet
from .types import Program

_RECENT = 16  # first runs looked at to tell a broken program from a bad row


class ProgramState:
    """What the scheduler keeps per program."""

    __slots__ = ("calls", "closed", "entry", "latency", "policy", "program", "rate", "recent", "waiting")

    def __init__(self, program: Program, entry: ReadySet | None, now: int) -> None:
        self.program = program
        self.entry = entry  # where new rows stand, when that is one set whatever their length
        self.policy: Policy = make_policy(program.policy)
        self.latency = [Latency(stage.profile) for stage in program.stages]
        self.rate = RateMonitor(now)
        self.recent: deque[bool] = deque(maxlen=_RECENT)  # True: that first run failed
        self.waiting = 0  # rows in the ready table
        self.calls = 0  # calls that have not left
        self.closed = False

    @property
    def broken(self) -> bool:
        return len(self.recent) == _RECENT and 2 * sum(self.recent) > _RECENT

    def time(self, rows: int) -> int:
        """Nanoseconds for a batch of `rows` through all stages."""
        return sum(latency.predict(rows) for latency in self.latency)
