"""When the clients of a workload launch their requests. Pure: time arrives as `now`, in ns from the start.

DISB's rules
    1. A task has at most one request at a time. While one is out, the task's further instants pass.
    2. Of the instants that have passed when the answer comes, the newest is launched at once and the others are
       dropped: a camera's client looks at the newest frame. So an overloaded server is asked less often, and a latency,
       which runs from the launch, holds no wait of a request for the one before it.
    3. An instant before the end of the run is launched, even if the answer before it comes after the end.
    4. A closed loop launches with each answer until the end. A dependent task launches when its predecessors have all
       answered the requests of one number; these are not dropped, but wait for its own answer.
    5. Periodic tasks of priority 0 and equal frequency are shifted apart, each by what those before it take alone.

Both drivers use this: the load generator in real time, a simulation in virtual time. A driver launches each `Launch` at
its time and says so (`launched`), and says when an answer has come (`ended`), which may plan further ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np

from planner.arrivals import gaps

from .workload import Load, Task, Workload

_NS = 1e9


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch a request of task number `task` at `at`. `due`: its instant, before `at` if it had to wait."""

    task: int
    at: int
    due: int


@dataclass(slots=True)
class Played:
    """What one task has done. Columns have an entry for each launch; `ended` is -1 while there is no answer."""

    task: Task
    due: list[int] = field(default_factory=list)
    launched: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)
    dropped: int = 0  # instants that passed


class Pace(ABC):
    """The instants of one task. `dropped`: those that passed."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.dropped = 0

    @abstractmethod
    def next(self, free: int) -> int | None:
        """The instant to launch next, for a client that has been free since `free`. None: there is none now."""


class Newest(Pace):
    """Given instants, in order. Each one before the end is launched or counted as dropped."""

    def __init__(self, instants: Iterable[int], end: int) -> None:
        super().__init__(end)
        self._instants = iter(instants)
        self._due = next(self._instants, None)

    def next(self, free: int) -> int | None:
        due = self._due
        if due is None:
            return None
        following = next(self._instants, None)
        while following is not None and following < free:
            self.dropped += due < self.end
            due, following = following, next(self._instants, None)
        self._due = following
        return due if due < self.end else None


class Closed(Pace):
    """The next request follows the answer."""

    def next(self, free: int) -> int | None:
        return free if free < self.end else None


class Following(Pace):
    """Launches for each number of which all `sources` have answered. A number that one of them failed is dropped."""

    def __init__(self, sources: int, end: int) -> None:
        super().__init__(end)
        self._sources = sources
        self._answers: dict[int, int] = defaultdict(int)  # by number: how many sources have answered
        self._ready: dict[int, int] = {}  # number -> when the last of them did

    def answered(self, number: int, now: int) -> None:
        self._answers[number] += 1
        if self._answers[number] == self._sources:
            self._ready[number] = now

    def next(self, free: int) -> int | None:
        if not self._ready:
            return None
        number = min(self._ready)
        due = self._ready.pop(number)
        for earlier in [one for one in self._answers if one <= number]:
            self.dropped += earlier != number
            del self._answers[earlier]
        return due if max(due, free) < self.end else None


class Players:
    """The clients of a workload. `alone_ns`: latency of each task alone, by id, for rule 5.

    The same workload, seed and answers give the same launches.
    """

    def __init__(self, workload: Workload, seed: int = 0, alone_ns: Mapping[str, int] | None = None) -> None:
        end = round(workload.time_s * _NS)
        self.played = [Played(task) for task in workload.tasks]
        shifts = _shifts(workload.tasks, alone_ns or {})
        self._paces = [
            _pace(task.load, end, [seed, number], shift)
            for number, (task, shift) in enumerate(zip(workload.tasks, shifts, strict=True))
        ]
        self._followers = [
            [number for number, other in enumerate(workload.tasks) if task.id in other.load.after]
            for task in workload.tasks
        ]
        self._busy = [False] * len(workload.tasks)  # a launch is planned, or its answer awaited

    @property
    def over(self) -> bool:
        """Nothing is planned or awaited, so that nothing will ever be launched again."""
        return not any(self._busy)

    def begin(self) -> list[Launch]:
        """The first launches."""
        return [launch for number in range(len(self._paces)) if (launch := self._plan(number, 0)) is not None]

    def launched(self, launch: Launch, now: int) -> None:
        played = self.played[launch.task]
        played.due.append(launch.due)
        played.launched.append(now)
        played.ended.append(-1)
        played.right.append(False)

    def ended(self, task: int, now: int, right: bool) -> list[Launch]:
        """The answer of a task's request has come, or will not come. Returns what is to be launched next."""
        played = self.played[task]
        played.ended[-1], played.right[-1] = now, right
        self._busy[task] = False
        found = [self._plan(task, now)]
        for number in self._followers[task]:
            pace = self._paces[number]
            assert isinstance(pace, Following)
            if right:
                pace.answered(len(played.ended) - 1, now)
            if not self._busy[number]:
                found.append(self._plan(number, now))
        return [launch for launch in found if launch is not None]

    def _plan(self, number: int, now: int) -> Launch | None:
        pace = self._paces[number]
        due = pace.next(now)
        self.played[number].dropped = pace.dropped
        if due is None:
            return None
        self._busy[number] = True
        return Launch(number, max(due, now), due)


def _shifts(tasks: Sequence[Task], alone_ns: Mapping[str, int]) -> list[int]:
    taken: dict[float, int] = defaultdict(int)  # by frequency: what the tasks so far take
    shifts = []
    for task in tasks:
        shift = 0
        if task.load.kind == "periodic" and task.load.priority <= 0:
            shift = taken[task.load.frequency]
            taken[task.load.frequency] += alone_ns.get(task.id, 0)
        shifts.append(shift)
    return shifts


def _pace(load: Load, end: int, seed: list[int], shift: int) -> Pace:
    if load.kind == "continuous":
        return Closed(end)
    if load.kind == "dependent":
        return Following(len(load.after), end)
    if load.kind == "trace":
        return Newest(load.trace, end)
    if load.kind == "poisson":
        return Newest(_poisson(load.frequency, seed), end)
    return Newest((shift + round(number * _NS / load.frequency) for number in count()), end)


def _poisson(frequency: float, seed: list[int]) -> Iterator[int]:
    own = int(np.random.SeedSequence(seed).generate_state(1)[0])  # a stream of its own for each task
    for chunk in gaps(frequency, 1.0, own):
        yield from chunk.tolist()
