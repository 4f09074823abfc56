"""A device that can also be measured while it serves: it knows its own units, and the engine hears of none of them.

The engine uses it as any other device. Units of a measurement have ids below 0, where the scheduler's are not; a job
that is pushed to a worker while that one is being measured is handed over when the measured unit has ended, so that no
worker has more units than its depth. All methods but those that `Device` says run elsewhere belong to the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from app.contract import Array, Model
from app.engine.device import Completion, Device, Executor, Freed, Job, Launched, Ran, Report, Transfer
from app.engine.pool import Slots
from app.scheduler.types import Fault


class Measured(NamedTuple):
    """A measured batch. `handover_ns`: from pushing it until its end was heard of, both on the loop, less computing.

    That is what a batch costs beyond computing in a server that has nothing else to do. It says so of a batch that was
    measured alone; of several begun together, each waits for its turn to be pushed.
    """

    completion: Completion
    handover_ns: int


class MeasuredDevice:
    """Implements devices.base.Device around another one. `clock` gives monotonic nanoseconds."""

    def __init__(self, device: Device, clock: Callable[[], int]) -> None:
        self.name, self.spec, self.threads, self.staged = device.name, device.spec, device.threads, device.staged
        self._device = device
        self._clock = clock
        self._report: Report
        self._loop: asyncio.AbstractEventLoop
        # Live jobs that were pushed, that have ended, and when the last one did. The first belongs to the loop; each
        # place of the others to one worker's thread, so that nothing here needs a lock.
        workers = len(device.spec.workers)
        self._pushed = 0
        self._ended = [0] * workers
        self._ended_at = [0] * workers
        self._number = 0  # of the last measured unit
        self._running: dict[int, int] = {}  # measured unit -> worker
        self._kept: dict[int, list[Job]] = {}  # by worker that is measured: live jobs for it
        self._begun = 0
        self._measurements: list[Measured] = []
        self._done: asyncio.Future[list[Measured]] | None = None

    # the device

    def start(self, report: Report, launched: Launched | None = None, freed: Freed | None = None) -> None:
        self._report = report
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
        if worker in self._kept:
            self._kept[worker].append(job)
        else:
            self._device.push(worker, job)

    def recall(self, worker: int, job: Job) -> None:
        self._device.recall(worker, job)

    def withdraw(self, worker: int, job: Job) -> bool:
        kept = self._kept.get(worker, ())
        if job in kept:  # the device has never seen it
            self._kept[worker].remove(job)
        elif not self._device.withdraw(worker, job):
            return False
        self._pushed -= 1
        return True

    def let_begin(self) -> None:
        self._device.let_begin()

    def free(self, executor: Executor) -> None:
        self._device.free(executor)

    def dead(self) -> str | None:
        return self._device.dead()

    def close(self, timeout_s: float) -> bool:
        return self._device.close(timeout_s)

    # measuring

    async def quiet(self, need_ns: int) -> None:
        """Return when no live job has been there for so long, from now on.

        Live jobs do not wake it, for that would cost each of them a turn of the loop: the timer is set for the earliest
        time at which it can be quiet, and set again if jobs have come until then.
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
        """Nanoseconds until there can have been no live job for so long."""
        if self._pushed > sum(self._ended):
            return need_ns
        return max(began, *self._ended_at) + need_ns - self._clock()

    async def measure(self, executor: Executor, batches: Sequence[tuple[int, Slots]]) -> list[Measured]:
        """Run one batch on each of some workers, all begun together; what came of them, in order of their ends.

        `batches` are (worker, slots). Once begun it goes on to its end, also when the caller is cancelled. They go the
        way of live units: pushed from the loop, and reported into it.
        """
        self._measurements = []
        self._loop = asyncio.get_running_loop()
        self._done = done = self._loop.create_future()
        self._begun = self._clock()
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
        if completion.outcome.goes_on:
            self._report(completion)
            return
        self._ended_at[completion.worker] = self._clock()
        self._ended[completion.worker] += 1
        self._report(completion)

    def _hand_over(self, what: Callable[..., None], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody measures any more
            self._loop.call_soon_threadsafe(what, *args)

    def _measured(self, completion: Completion) -> None:
        took = self._clock() - self._begun
        worker = self._running.pop(completion.outcome.unit_id)
        for job in self._kept.pop(worker):
            self._device.push(worker, job)
        self._measurements.append(Measured(completion, took - completion.outcome.compute_ns))
        if not self._running and self._done is not None:
            self._done.set_result(self._measurements)
