"""Who works: how many units each worker holds, who may be handed another, and which of them is."""

from __future__ import annotations

from collections.abc import Sequence

from app.scheduler.types import DeviceSpec


class Workers:
    """`busy`: workers with a unit. At most `max_running` are; each holds at most `push_depth` units."""

    __slots__ = ("_depth", "_idle_since", "_load", "_most", "_returns", "busy")

    def __init__(self, device: DeviceSpec) -> None:
        self._depth = device.push_depth
        self._most = device.max_running
        self._load = [0] * len(device.workers)  # units handed to each
        self._returns = 0  # of workers that became idle
        self._idle_since = [0] * len(device.workers)  # in returns; equal workers serve in turn
        self.busy = 0

    @property
    def full(self) -> bool:
        """Nobody may be handed a unit, known without a look at each."""
        return self._depth == 1 and self.busy == self._most

    @property
    def running(self) -> int:
        """Units at work when one more has started."""
        return min(self.busy + 1, self._most)

    def free(self, idle: int) -> int:
        """Units that may start now on so many idle workers, each on one of its own."""
        return min(idle, max(1, self._most - self.busy))

    def idle(self) -> list[int]:
        """Workers that may be handed a unit."""
        least = 0 if self.busy < self._most else 1  # none may begin: only those at work may hold one more
        return [worker for worker, load in enumerate(self._load) if least <= load < self._depth]

    def choose(self, idle: Sequence[int], size: int, capacity: Sequence[int]) -> int:
        """The smallest idle worker that takes `size` rows, so that larger ones stay free for larger units.

        Among equals the one with the least to do, and then the one that has been idle longest.
        """
        if len(idle) == 1:
            return idle[0]
        fits = (worker for worker in idle if capacity[worker] >= size)
        return min(fits, key=lambda w: (capacity[w], self._load[w], self._idle_since[w], w))

    def take(self, worker: int) -> None:
        """It is handed a unit."""
        self._load[worker] += 1
        if self._load[worker] == 1:
            self.busy += 1

    def give_back(self, worker: int) -> None:
        """A unit of it has ended."""
        self._load[worker] -= 1
        if not self._load[worker]:
            self.busy -= 1
            self._returns += 1
            self._idle_since[worker] = self._returns
