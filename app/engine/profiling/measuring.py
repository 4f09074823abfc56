"""Runs measured batches on the workers that serve, between the units of the engine.

Measured units have ids below 0, where the scheduler's are not. A unit of the engine that is pushed meanwhile waits
behind them in its worker's queue. All of this is on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from app.engine.device import Completion, Device, Job
from app.engine.executor import Executor
from app.engine.pool import Slots


class Timed(NamedTuple):
    """Nanoseconds of a unit, and of each stage of a model in stages."""

    ns: int
    by_stage: tuple[int, ...] = ()

    @classmethod
    def of(cls, completion: Completion) -> Timed:
        """What a worker has reported of a unit."""
        ran = completion.ran
        return cls(completion.outcome.compute_ns, () if ran is None else ran.by_stage_ns)


def median_of(timed: Sequence[Timed]) -> Timed:
    """Of units that ran at once, or one after another."""
    by_stage = zip(*(one.by_stage for one in timed), strict=True)
    return Timed(max(1, round(median(one.ns for one in timed))), tuple(max(1, round(median(ns))) for ns in by_stage))


class Measured(NamedTuple):
    """A measured batch. `took_ns`: from pushing it until its completion got to the loop."""

    completion: Completion
    took_ns: int

    @property
    def timed(self) -> Timed:
        return Timed.of(self.completion)

    @property
    def handover_ns(self) -> int:
        """What the batch cost beyond computing, in a server that has nothing else to do.

        It holds for a batch that was measured alone; of several begun together, each waits for its turn to be pushed.
        """
        return self.took_ns - self.completion.outcome.compute_ns


class Measuring:
    """`clock` gives monotonic nanoseconds. Whoever starts the device hands completions of measured units to `ended`.

    `idle_since`: when the engine's last unit ended, None while it has some; set by the engine.
    """

    def __init__(self, device: Device, clock: Callable[[], int]) -> None:
        self.idle_since: Callable[[], int | None] = lambda: 0
        self._device = device
        self._clock = clock
        self._number = 0  # of the last measured unit
        self._running: dict[int, asyncio.Future[Measured]] = {}
        self._begun = 0

    async def quiet(self, need_ns: int) -> None:
        """Return when the engine has had no unit for so long, from now on.

        Units do not wake it, for that would cost each of them a turn of the loop: the timer is set for the earliest
        time at which it can be quiet, and set again if units have come until then.
        """
        loop, began = asyncio.get_running_loop(), self._clock()
        while (wait_ns := self._until_quiet(began, need_ns)) > 0:
            passed = loop.create_future()
            timer = loop.call_later(wait_ns / 1e9, passed.set_result, None)
            try:
                await passed
            finally:
                timer.cancel()

    def _until_quiet(self, began: int, need_ns: int) -> int:
        """Nanoseconds until there can have been no unit for so long."""
        since = self.idle_since()
        return need_ns if since is None else max(began, since) + need_ns - self._clock()

    async def measure(self, executor: Executor, batches: Sequence[tuple[int, Slots]]) -> list[Measured]:
        """Run one batch on each of some workers, all begun together; what came of each.

        `batches` are (worker, slots). Once begun they run to their end, also when the caller is cancelled. They are
        handed over as the engine's units are: pushed from the loop, and reported into it.
        """
        loop = asyncio.get_running_loop()
        ends: list[asyncio.Future[Measured]] = []
        self._begun = self._clock()
        for worker, slots in batches:
            self._number -= 1
            end = self._running[self._number] = loop.create_future()
            ends.append(asyncio.shield(end))
            self._device.push(worker, Job(self._number, executor, slots, len(slots)))
        return await asyncio.gather(*ends)

    async def unmeasured(self) -> None:
        """Return when no measured unit runs."""
        if self._running:
            await asyncio.wait(self._running.values())

    def ended(self, completion: Completion) -> None:
        """A measured unit has ended."""
        end = self._running.pop(completion.outcome.unit_id)
        end.set_result(Measured(completion, self._clock() - self._begun))
