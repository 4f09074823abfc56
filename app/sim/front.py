"""The HTTP front of one replica: an event loop and helper threads, which share one interpreter with the batches.

The loop works in turns: it takes all that is there, handles it in order, and has the scheduler asked at the end of the
turn. Helper threads decode what would hold the loop up. All of this is Python, and one thread at a time runs that: n
threads with work to do are taken to run at 1/n of their speed each, since the lock goes round among them. A batch
computes without the lock, but needs it before each of its operations, and shares caches and cores with the front and
its clients. So it takes longer while helper threads are at work, and the more of the time the loop is: the loop has
little to do while a batch runs, but at a higher rate so have all others. How much longer is fitted to what is measured.
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
_FACTORS = ("scale", "slowed", "spread")
_MEMORY_NS = 100e6  # over which the loop's share of the time is averaged


@dataclass(frozen=True, slots=True)
class FrontCosts:
    """Nanoseconds of CPU, alone. `call_ns`: of the loop for each request, half to read it and half to answer.

    `batch_ns`: of the loop for each batch, half to start it and half when it has ended. `decode_ns`: of a helper thread
    for each request; 0 where the loop decodes. `group_ns`: of the thread for each group of requests, where it reads all
    that wait at once, as texts; 0 where it reads them one after another. `path_ns`: what a lone request takes beyond
    these and its batch: sockets and wake-ups, less work of the loop that does not delay the answer; it may be below 0.

    Batches of requests take `scale` times as long as the profile says (which knows them one after another, in caches of
    their own), and `slowed` times that more beside each thread that is at work (see `Front.slows`). `spread`: the
    standard deviation of their times over what they should be. `threads`: helpers.
    """

    call_ns: int = 0
    batch_ns: int = 0
    decode_ns: int = 0
    group_ns: int = 0
    path_ns: int = 0
    scale: float = 1.0
    slowed: float = 0.0
    spread: float = 0.0
    threads: int = 2

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> FrontCosts:
        """As `to_dict` makes it, times in microseconds; what is no number counts as not measured."""
        good = {name: one for name, one in given.items() if isinstance(one, int | float) and abs(one) < 1e9}
        times = {f"{name}_ns": round(good[f"{name}_us"] * 1e3) for name in _TIMES if f"{name}_us" in good}
        return cls(**times, **{name: max(0.0, good[name]) for name in _FACTORS if name in good})  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, float]:
        """What is measured with requests, times in microseconds."""
        times = {f"{name}_us": round(getattr(self, f"{name}_ns") / 1e3, 1) for name in _TIMES}
        return {**times, **{name: round(getattr(self, name), 3) for name in _FACTORS}}

    def doubled(self) -> FrontCosts:
        """Each request and batch takes the interpreter twice as long."""
        return replace(self, **{f"{name}_ns": 2 * getattr(self, f"{name}_ns") for name in _TIMES})

    def held_ns(self, rows: int) -> float:
        """How long the interpreter is at work for each request, in batches and groups of so many rows."""
        return self.call_ns + self.decode_ns + (self.batch_ns + self.group_ns) / rows

    @property
    def aside(self) -> bool:
        """Whether helper threads decode."""
        return bool(self.decode_ns or self.group_ns)


class Request(NamedTuple):
    """What is submitted when it has been read and decoded."""

    arrived: int
    length: int
    steps: int
    klass: Klass


class Part(IntEnum):
    """What the loop does. READ: a request; SUBMIT: one that a thread has decoded."""

    READ = 0
    SUBMIT = 1
    START = 2
    ENDED = 3
    ANSWER = 4


class Work(NamedTuple):
    part: Part
    what: Any  # the request, unit, outcome or call


class Front:
    """A station as Device is one: `due` is when its next piece of work is done, and `pop` returns that."""

    def __init__(self, costs: FrontCosts) -> None:
        self.costs = costs
        #: When the next piece of work is done, in ns; None while there is none.
        self.due: int | None = None
        #: Nanoseconds in which the loop or a thread was at work, until the last end.
        self.busy_ns = 0
        #: Threads that have Python to run.
        self.busy = 0
        #: Whether the piece of work just done was the last of its turn.
        self.turn_over = False
        half_call, half_batch = costs.call_ns / 2, costs.batch_ns / 2
        self._cost = {
            Part.READ: half_call, Part.SUBMIT: 0.0, Part.START: half_batch, Part.ENDED: half_batch,
            Part.ANSWER: half_call,
        }  # fmt: skip
        self._turn: deque[Work] = deque()  # the head is at work
        self._next_turn: deque[Work] = deque()
        self._left = 0.0  # nanoseconds, of the turn's head
        self._undecoded: deque[Any] = deque()
        self._decoding: list[list[Any]] = []  # of each thread at work: [nanoseconds left, requests]
        self._seen = 0  # when what is left was last brought up to date
        self._loop_share = 0.0  # of late, of the time
        #: A helper thread has begun or ended its work since somebody set this back.
        self.moved = False

    def put(self, part: Part, what: Any, now: int) -> None:
        """Something for the loop's next turn."""
        self._pass(now)
        self._next_turn.append(Work(part, what))
        self._plan(now)

    def insert(self, works: Iterable[Work], now: int) -> None:
        """What follows from the piece just done, before the rest of the turn; a piece that is half done comes first."""
        self._pass(now)
        begun = [self._turn.popleft()] if self._turn and self._left < self._cost[self._turn[0].part] else []
        self._turn.extendleft(reversed([*begun, *works]))
        if self._turn and not begun:
            self._left = self._cost[self._turn[0].part]
        self._plan(now)

    def decode(self, request: Any, now: int) -> None:
        """Have a helper thread decode it; it is then put to the loop as SUBMIT."""
        self._pass(now)
        self._undecoded.append(request)
        self._plan(now)

    def pop(self, now: int) -> Work | None:
        """The loop's piece of work that is done now; None if a thread's is. Call it only when `now` is `due`."""
        self._pass(now)
        self.turn_over = False
        done: Work | None = None
        if self._turn and self._left <= 0.5:
            done = self._turn.popleft()
            self._left = self._cost[self._turn[0].part] if self._turn else 0.0
            self.turn_over = not self._turn
        for job in [job for job in self._decoding if job[0] <= 0.5]:
            self._decoding.remove(job)
            self.moved = True
            self._next_turn += [Work(Part.SUBMIT, request) for request in job[1]]
        self._plan(now)
        return done

    @property
    def slows(self) -> float:
        """How many times as long as beside an idle front a batch takes now."""
        return 1.0 + self.costs.slowed * (len(self._decoding) + self._loop_share)

    def _pass(self, now: int) -> None:
        """Subtract the time since the last change from what is left of each thread's work."""
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
        """Begin what can begin, and compute what is done first."""
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
