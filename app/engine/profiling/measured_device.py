"""A device that can also be measured while it serves: it knows its own units, and the engine hears of none of them.

The engine uses it as any other device. Units of a measurement have ids below 0, where the scheduler's are not; a job
that is pushed to a worker while that one is being measured is handed over when the measured unit has ended, so that no
worker has more units than its depth. All methods but those that `Device` says run elsewhere belong to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from app.contract import Array, Model
from app.engine.devices.base import Completion, Device, Executor, Freed, Job, Launched, Ran, Report, Transfer
from app.engine.devices.pool import Slots
from app.scheduler.types import Fault


class MeasuredDevice:
    """Implements devices.base.Device around another one. `clock` gives monotonic nanoseconds."""

    def __init__(self, device: Device, clock: Callable[[], int]) -> None:
        self.name, self.spec, self.threads, self.staged = device.name, device.spec, device.threads, device.staged
        self._device = device
        self._clock = clock
        self._report: Report
        self._loop: asyncio.AbstractEventLoop
        # Live jobs that were pushed and that have ended. The first belongs to the loop; each place of the second to one
        # worker's thread, so that neither needs a lock.
        self._pushed = 0
        self._ended = [0] * len(device.spec.workers)
        self._watching = False  # somebody waits for the device to be idle
        self._idle_since: int | None = None  # None while a live job is there
        self._need_ns = 0
        self._quiet: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._number = 0  # of the last measured unit
        self._running: dict[int, int] = {}  # measured unit -> worker
        self._kept: dict[int, list[Job]] = {}  # by worker that is measured: live jobs for it
        self._completions: list[Completion] = []
        self._done: asyncio.Future[list[Completion]] | None = None

    # the device

    def start(self, report: Report, launched: Launched | None = None, freed: Freed | None = None) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._device.start(self._heard, launched, freed)

    def open(self, model: Model, slots: int) -> Executor:
        return self._device.open(model, slots)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        return self._device.trial(executor, slots, size)

    def transfer(self, executor: Executor, rows: int, outputs: list[Array]) -> Transfer | None:
        return self._device.transfer(executor, rows, outputs)

    def arrive(self, executor: Executor, slots: Slots) -> None:
        self._device.arrive(executor, slots)

    def push(self, worker: int, job: Job) -> None:
        self._pushed += 1
        if self._watching:
            self._moved()
        if worker in self._kept:
            self._kept[worker].append(job)
        else:
            self._device.push(worker, job)

    def free(self, executor: Executor) -> None:
        self._device.free(executor)

    def dead(self) -> str | None:
        return self._device.dead()

    def close(self, timeout_s: float) -> bool:
        return self._device.close(timeout_s)

    # measuring

    async def quiet(self, need_ns: int) -> None:
        """Return when no live job has been there for so long."""
        self._watching = True
        try:
            self._moved()
            while self._idle_since is None or self._clock() < self._idle_since + need_ns:
                self._need_ns = need_ns
                self._quiet = self._loop.create_future()
                self._arm()
                await self._quiet
                self._moved()
        finally:
            self._watching = False
            self._quiet = None
            self._idle_since = None
            self._disarm()

    async def measure(self, executor: Executor, batches: Sequence[tuple[int, Slots]]) -> list[Completion]:
        """Run one batch on each of some workers, all begun together; what came of them, in order of their ends.

        `batches` are (worker, slots). Once begun it goes on to its end, also when the caller is cancelled.
        """
        self._completions = []
        self._done = done = self._loop.create_future()
        for worker, slots in batches:
            self._number -= 1
            self._running[self._number] = worker
            self._kept[worker] = []
            self._device.push(worker, Job(self._number, executor, slots, len(slots)))
        return await asyncio.shield(done)

    async def unmeasured(self) -> None:
        """Return when no measured unit runs."""
        if self._running and self._done is not None:
            await asyncio.wait([self._done])

    def _heard(self, completion: Completion) -> None:
        """Called on a device's thread."""
        if completion.outcome.unit_id < 0:
            if completion.outcome.error is Fault.DEVICE:
                self._report(completion)  # the engine has lost the device with it
            self._hand_over(self._measured, completion)
            return
        self._ended[completion.worker] += 1
        self._report(completion)
        if self._watching:  # set before the counts are read, so that no end goes unseen
            self._hand_over(self._moved)

    def _hand_over(self, what: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody measures any more
            self._loop.call_soon_threadsafe(what, *args)

    def _measured(self, completion: Completion) -> None:
        worker = self._running.pop(completion.outcome.unit_id)
        for job in self._kept.pop(worker):
            self._device.push(worker, job)
        self._completions.append(completion)
        if not self._running and self._done is not None:
            self._done.set_result(self._completions)

    # idleness

    def _moved(self) -> None:
        """A live job has come or ended."""
        if not self._watching:
            return
        if self._pushed > sum(self._ended):
            self._idle_since = None
            self._disarm()
        elif self._idle_since is None:
            self._idle_since = self._clock()
            self._arm()

    def _arm(self) -> None:
        if self._idle_since is not None and self._quiet is not None and self._timer is None:
            wait_ns = self._idle_since + self._need_ns - self._clock()
            self._timer = self._loop.call_later(max(0, wait_ns) / 1e9, self._settle)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _settle(self) -> None:
        self._timer = None
        if self._quiet is not None and not self._quiet.done():
            self._quiet.set_result(None)
