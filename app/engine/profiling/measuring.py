"""Runs measured batches on the workers that serve, between the units of the engine.

Measured units have negative ids, which the scheduler never uses. A unit of the engine that is pushed meanwhile waits
behind them in its worker's queue. Everything here runs on the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from app.engine.device import Completion, Device
from app.engine.executor import Executor, Job, Stop
from app.engine.pool import Slots
from app.scheduler.estimates.evidence import UnitTime


class MeasuredBatch(NamedTuple):
    """A measured batch. `took_ns`: from its push until the loop got its completion."""

    completion: Completion
    took_ns: int

    @property
    def timed(self) -> UnitTime:
        """Raises RuntimeError when the model has failed."""
        if self.completion.ran is None:
            raise RuntimeError(self.completion.message)
        return UnitTime(self.completion.outcome.compute_ns, self.completion.ran.by_stage_ns)

    @property
    def handover_ns(self) -> int:
        """The time of the batch beyond computing, in an idle server. Only valid for a batch that was measured alone."""
        return self.took_ns - self.completion.outcome.compute_ns


class Measuring:
    """Pushes measured units. The owner of the device passes completions of units with negative ids to `ended`.

    `clock`: monotonic nanoseconds. `idle_since`, set by the engine, returns when its last unit ended; None while one
    runs. `alone`: there will be no calls, so measured units need not wait for a silence.
    """

    def __init__(self, device: Device, clock: Callable[[], int]) -> None:
        self.idle_since: Callable[[], int | None] = lambda: 0
        self.alone = False
        self._device = device
        self.clock = clock
        self._number = 0  # of the last measured unit
        self._running: dict[int, asyncio.Future[MeasuredBatch]] = {}
        self._begun = 0

    async def quiet(self, need_ns: int) -> None:
        """Return when the engine has had no unit for `need_ns`, counted from now at the earliest.

        Units do not wake this coroutine, which would cost each of them a turn of the loop. A timer rings at the
        earliest possible time, and is set again if units have run meanwhile.
        """
        loop, began = asyncio.get_running_loop(), self.clock()
        while not self.alone and (wait_ns := self._until_quiet(began, need_ns)) > 0:
            passed = asyncio.Event()  # no future: one that was cancelled as the timer rings would raise there
            timer = loop.call_later(wait_ns / 1e9, passed.set)
            try:
                await passed.wait()
            finally:
                timer.cancel()

    def _until_quiet(self, began: int, need_ns: int) -> int:
        """Nanoseconds until the earliest possible end of `quiet`."""
        since = self.idle_since()
        return need_ns if since is None else max(began, since) + need_ns - self.clock()

    async def measure(self, executor: Executor, batches: Sequence[tuple[int, Slots]]) -> list[MeasuredBatch]:
        """Run one batch on each of some workers at once. `batches` are (worker, slots).

        They run to their end, also when the caller is cancelled. As with the engine's units, the loop pushes them and
        gets their reports.
        """
        loop = asyncio.get_running_loop()
        ends: list[asyncio.Future[MeasuredBatch]] = []
        self._begun = self.clock()
        for worker, slots in batches:
            self._number -= 1
            end = self._running[self._number] = loop.create_future()
            ends.append(asyncio.shield(end))
            self._device.push(worker, Job(self._number, executor, slots, len(slots)), Stop())
        return await asyncio.gather(*ends)

    async def unmeasured(self) -> None:
        """Return when no measured unit runs."""
        if self._running:
            await asyncio.wait(self._running.values())

    def ended(self, completion: Completion) -> None:
        """A measured unit has ended."""
        end = self._running.pop(completion.outcome.unit_id)
        end.set_result(MeasuredBatch(completion, self.clock() - self._begun))
