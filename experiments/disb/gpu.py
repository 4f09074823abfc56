"""A simple model of REEF's GPU: what runs at once.

Assumptions, which the page lists
    1. A unit is on its stream `LAUNCH_US` after it was handed over, and begins when those before it there have ended:
       a queue of one kernel, launched anew each time, makes ResNet's 307 kernels 2 ms slower, as in the paper.
    2. While k units run as equals, each takes 1 + `shared` (k - 1) times as long as alone, whatever their models. So k
       units do k / (1 + shared (k - 1)) times the work of one.
    3. A best-effort unit that begins while a real-time unit runs is padding, where streams have priorities: the blocks
       of the real-time unit go first. That one is slowed by what its pair says, the sum of all that pad it, and the
       padding does `left` of the work that so many units would do beyond those that run as equals. A best-effort kernel
       that began before the real-time unit has its part of the GPU, and shares as an equal until it ends; with
       `yields` its blocks make way at once.
    4. Nothing is killed. A unit that is recalled ends with the kernel that runs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from app.scheduler.types import Unit

LAUNCH_US = 6.5
SHARED = 0.36
LEFT = 0.87


@dataclass(frozen=True, slots=True)
class Sharing:
    """How units that run at once share the GPU; see the module's text. `priorities`: of streams, which padding needs.

    `slower`: by (real-time program, best-effort program), by what part of its time the first is slowed.
    """

    shared: float = SHARED
    left: float = LEFT
    priorities: bool = False
    yields: bool = False
    slower: Mapping[tuple[int, int], float] | None = None

    def work(self, units: int) -> float:
        """What so many units do together, of what one does alone."""
        return units / (1 + self.shared * (units - 1)) if units else 0.0

    def speeds(self, running: Sequence[Unit]) -> list[float]:
        """Of units that run, in the order in which they began."""
        first = next((at for at, unit in enumerate(running) if not unit.klass), None)
        pads = self.priorities and first is not None
        last = -1 if self.yields else first or 0
        padding = [bool(pads and unit.klass and at > last) for at, unit in enumerate(running)]
        padded = [unit.program for unit, beside in zip(running, padding, strict=True) if beside]
        equals = len(running) - len(padded)
        equal = self.work(equals) / equals if equals else 0.0
        beyond = min(equal, self.left * (self.work(len(running)) - self.work(equals)) / max(1, len(padded)))
        slower = self.slower or {}
        return [
            beyond if beside else equal / (1 + sum(slower.get((unit.program, other), 0.0) for other in padded))
            for unit, beside in zip(running, padding, strict=True)
        ]


class _Running:
    """The unit at the head of a stream. `left`: nanoseconds that it would still take alone; `kernel`: its kernel, where
    further ones will pad a real-time unit that began meanwhile."""

    __slots__ = ("began", "kernel", "left", "speed", "times", "unit")

    def __init__(self, unit: Unit, times: Sequence[int], now: int) -> None:
        self.unit = unit
        self.times = times
        self.left = float(sum(times))
        self.kernel = 0.0
        self.speed = 1.0
        self.began = now

    def stages(self) -> tuple[int, float]:
        """Stages until the one that runs has ended, and what of this is left."""
        ran = sum(self.times) - self.left
        number, end = next(((at, end) for at, end in enumerate(accumulate(self.times), 1) if end > ran), (1, 0))
        return (number, end - ran) if end else (len(self.times), 0.0)


class Ended(NamedTuple):
    """A unit that has ended, the nanoseconds that it ran, and what its stages take alone."""

    unit: Unit
    compute_ns: int
    alone: Sequence[int]


class ModelledGpu:
    """What units run on. `times`: by program, of each of its stages."""

    def __init__(self, times: Mapping[int, Sequence[int]], sharing: Sharing) -> None:
        self.due: int | None = None
        self._times = times
        self._sharing = sharing
        self._waiting: dict[int, deque[Unit]] = defaultdict(deque)  # by worker
        self._running: dict[int, _Running] = {}  # by worker, in the order in which they began
        self._seen = 0
        self._next = -1  # the worker whose unit ends at `due`

    def push(self, unit: Unit, now: int) -> None:
        if unit.worker in self._running:
            self._waiting[unit.worker].append(unit)
            return
        self._pass(now)
        self._begin(unit, now)
        self._plan(now)

    def pop(self, now: int) -> Ended | None:
        """What ends at `due`; None where only a kernel of it does."""
        self._pass(now)
        ended = self._running.pop(self._next)
        if ended.kernel and ended.left > 1:
            ended.kernel = 0.0
            self._running[self._next] = ended  # the next kernel begins after all others
            self._plan(now)
            return None
        waiting = self._waiting[self._next]
        if waiting:
            self._begin(waiting.popleft(), now)
        self._plan(now)
        return Ended(ended.unit, now - ended.began, ended.times)

    def recall(self, unit: Unit, now: int) -> None:
        """Let a unit of several stages end with the one that runs."""
        self._pass(now)
        running = self._running[unit.worker]
        made, running.left = running.stages()
        running.times = running.times[:made]
        self._plan(now)

    def _begin(self, unit: Unit, now: int) -> None:
        times = self._times[unit.program][unit.stage : unit.stage + unit.steps]
        self._running[unit.worker] = _Running(unit, times, now)
        if not unit.klass:
            for other in self._running.values():
                if other.unit.klass and len(other.times) > 1:
                    other.kernel = other.stages()[1]

    def _pass(self, now: int) -> None:
        elapsed = now - self._seen
        self._seen = now
        for running in self._running.values():
            running.left -= elapsed * running.speed
            if running.kernel:
                running.kernel = max(1.0, running.kernel - elapsed * running.speed)

    def _plan(self, now: int) -> None:
        """What each unit's speed is, and which one ends first."""
        self.due = None
        speeds = self._sharing.speeds([running.unit for running in self._running.values()])
        for (worker, running), speed in zip(self._running.items(), speeds, strict=True):
            running.speed = speed
            left = min(running.left, running.kernel or running.left)
            end = now + max(1, round(left / speed))
            if self.due is None or end < self.due:
                self.due, self._next = end, worker
