"""Simulates the HTTP front of one replica: an event loop and helper threads, which share one interpreter with batches.

Costs are CPU times; n busy threads run at 1/n of their speed each, and batches beside them take longer. Why:
docs/theory/simulator.md.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, NamedTuple

from app.scheduler.types import Klass

_TIMES = ("call", "batch", "decode", "group", "path")
_FACTORS = ("scale", "slowed", "spread", "error")
_MEMORY_NS = 100e6  # time constant of the mean of the loop's busy share


@dataclass(frozen=True, slots=True)
class FrontCosts:
    """CPU time in nanoseconds, when nothing else runs.

    `call_ns`: of the loop for each request, half to read it and half to answer it. `batch_ns`: of the loop for each
    batch, half to start it and half when it has ended. `decode_ns`: of a helper thread for each request; 0 if the loop
    decodes. `group_ns`: of the thread for each group, if it reads all waiting requests at once, as for texts; 0 if it
    reads them one by one. `path_ns`: what a lone request takes beyond these and its batch: sockets and wake-ups, less
    the work of the loop that does not delay the answer. It may be negative.

    Batches take `scale` times as long as in the profile, which measures them back to back with warm caches, and longer
    by `slowed` times that for each busy thread beside them (`SimulatedFront.slows`). `spread`: the standard deviation
    of their times, relative to the expected time. `error`: by how much the batch times fitted to measured loads are off
    there. `threads`: number of helper threads.
    """

    call_ns: int = 0
    batch_ns: int = 0
    decode_ns: int = 0
    group_ns: int = 0
    path_ns: int = 0
    scale: float = 1.0
    slowed: float = 0.0
    spread: float = 0.0
    error: float = 0.0
    threads: int = 2

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> FrontCosts:
        """The inverse of `to_dict`. A value that is no number counts as not measured."""
        good = {name: one for name, one in given.items() if isinstance(one, int | float) and abs(one) < 1e9}
        times = {f"{name}_ns": round(good[f"{name}_us"] * 1e3) for name in _TIMES if f"{name}_us" in good}
        return cls(**times, **{name: max(0.0, good[name]) for name in _FACTORS if name in good})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, float]:
        """The measured costs, times in microseconds."""
        times = {f"{name}_us": round(getattr(self, f"{name}_ns") / 1e3, 1) for name in _TIMES}
        return {**times, **{name: round(getattr(self, name), 3) for name in _FACTORS}}

    def doubled(self) -> FrontCosts:
        """The same, with twice the time for each request and batch."""
        return replace(self, **{f"{name}_ns": 2 * getattr(self, f"{name}_ns") for name in _TIMES})

    def held_ns(self, rows: int) -> float:
        """Interpreter time for each request, in batches and groups of so many rows."""
        return self.call_ns + self.decode_ns + (self.batch_ns + self.group_ns) / rows

    @property
    def aside(self) -> bool:
        """Whether helper threads decode."""
        return bool(self.decode_ns or self.group_ns)


class FrontRequest(NamedTuple):
    """A request, submitted once it has been read and decoded."""

    arrived: int
    length: int
    steps: int
    klass: Klass


class LoopPart(IntEnum):
    """What the loop does. READ: a request; SUBMIT: one that a thread has decoded. ENDED: a unit, whose outcome the
    scheduler may have had before (None).
    """

    READ = 0
    SUBMIT = 1
    START = 2
    ENDED = 3
    ANSWER = 4


class FrontWork(NamedTuple):
    part: LoopPart
    what: Any  # the request, unit, outcome (or None) or call


class SimulatedFront:
    """Works like Device: `due` is when the next piece of work is done, and `pop` returns it then."""

    def __init__(self, costs: FrontCosts) -> None:
        self.costs = costs
        #: When the next piece of work is done, in ns; None while there is none.
        self.due: int | None = None
        #: Nanoseconds in which the loop or a thread was busy, until the last end.
        self.busy_ns = 0
        #: The number of busy threads, the loop included.
        self.busy = 0
        #: Whether the piece of work just done was the last of its turn.
        self.turn_over = False
        half_call, half_batch = costs.call_ns / 2, costs.batch_ns / 2
        self._cost = {
            LoopPart.READ: half_call, LoopPart.SUBMIT: 0.0, LoopPart.START: half_batch, LoopPart.ENDED: half_batch,
            LoopPart.ANSWER: half_call,
        }  # fmt: skip
        self._turn: deque[FrontWork] = deque()  # the first piece is in progress
        self._next_turn: deque[FrontWork] = deque()
        self._left = 0.0  # nanoseconds left of the turn's first piece
        self._undecoded: deque[Any] = deque()
        self._decoding: list[list[Any]] = []  # for each busy helper thread: [nanoseconds left, requests]
        self._seen = 0  # when what is left was last brought up to date
        self._loop_share = 0.0  # recent share of time in which the loop was busy
        #: A helper thread has begun or ended its work since this was last reset.
        self.moved = False

    def put(self, works: Iterable[FrontWork], now: int) -> None:
        """Add work to the loop's next turn."""
        self._pass(now)
        self._next_turn.extend(works)
        self._plan(now)

    def insert(self, works: Iterable[FrontWork], now: int) -> None:
        """Insert work that follows from the piece just done: before the rest of the turn, after a piece in progress."""
        self._pass(now)
        begun = [self._turn.popleft()] if self._turn and self._left < self._cost[self._turn[0].part] else []
        self._turn.extendleft(reversed([*begun, *works]))
        if self._turn and not begun:
            self._left = self._cost[self._turn[0].part]
        self._plan(now)

    def decode(self, request: Any, now: int) -> None:
        """Have a helper thread decode a request; the loop then gets it as SUBMIT."""
        self._pass(now)
        self._undecoded.append(request)
        self._plan(now)

    def pop(self, now: int) -> FrontWork | None:
        """The loop's piece of work that is done now; None if a helper thread's is. Call it only when `now` is `due`."""
        self._pass(now)
        self.turn_over = False
        done: FrontWork | None = None
        if self._turn and self._left <= 0.5:
            done = self._turn.popleft()
            self._left = self._cost[self._turn[0].part] if self._turn else 0.0
            self.turn_over = not self._turn
        for job in [job for job in self._decoding if job[0] <= 0.5]:
            self._decoding.remove(job)
            self.moved = True
            self._next_turn += [FrontWork(LoopPart.SUBMIT, request) for request in job[1]]
        self._plan(now)
        return done

    @property
    def slows(self) -> float:
        """The factor by which the busy front slows a batch now."""
        return 1.0 + self.costs.slowed * (len(self._decoding) + self._loop_share)

    def _pass(self, now: int) -> None:
        """Subtract the time since the last change from the remaining work of each thread."""
        elapsed, self._seen = now - self._seen, now
        if not elapsed:
            return
        at_work = float(bool(self._turn))
        self._loop_share = at_work + (self._loop_share - at_work) * math.exp(-elapsed / _MEMORY_NS)
        if not self.busy:
            return
        self.busy_ns += elapsed
        each = elapsed / self.busy
        if self._turn:
            self._left -= each
        for job in self._decoding:
            job[0] -= each

    def _plan(self, now: int) -> None:
        """Begin work that can begin, and compute when the first piece is done."""
        if not self._turn and self._next_turn:
            self._turn, self._next_turn = self._next_turn, self._turn
            self._left = self._cost[self._turn[0].part]
        while self._undecoded and len(self._decoding) < self.costs.threads:
            taken = [self._undecoded.popleft() for _ in range(len(self._undecoded) if self.costs.group_ns else 1)]
            self.moved = True
            self._decoding.append([float(self.costs.group_ns + self.costs.decode_ns * len(taken)), taken])
        self.busy = bool(self._turn) + len(self._decoding)
        left = [job[0] for job in self._decoding]
        if self._turn:
            left.append(self._left)
        self.due = now + max(0, round(min(left) * self.busy)) if left else None
