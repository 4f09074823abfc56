"""The asyncio driver of the scheduler: the only live caller of it, and the owner of leases, timer and workers.

The driver's rule: after each input, `step` once, and carry out all of the Step. Inputs that arrive in one turn of the
loop share a step; a finished unit is followed by one at once, so that the device has its next work before the answers
of the last are given. Everything here runs on the event loop, except the models.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self, cast

from app.contract import Model, Served
from app.engine.device import Device
from app.engine.lease import Batch, Lease
from app.engine.served import ServedModel
from app.engine.warmup import fit_queue, warm_up
from app.engine.worker import Completion, Job
from app.errors import DeadlineExceeded, ModelFailed, NotReady, StarlingError
from app.metrics import Snapshot
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Drop, Fault, Program, Reason, Stage, Unit

log = logging.getLogger("starling.engine")

_WORKER_END_S = 2.0  # everything has been answered by then: a worker still at work hangs, or works for nobody
_LEAST_TIMER_S = 0.001  # loops round to milliseconds; an earlier timer would wake up before its time


class Engine:
    """Use as `async with Engine(...)`. Implements contract.ModelHost.

    `clock` gives monotonic nanoseconds. `window_s` is the rate monitor's window.
    `hang_factor`, `hang_floor_s`: see `stuck`.
    """

    def __init__(
        self,
        device: Device,
        scheduler: Scheduler,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        window_s: float = 1.0,
        hang_factor: float = 20.0,
        hang_floor_s: float = 3.0,
        pool_bytes: int = 512 << 20,
        on_lost: Callable[[str], None] | None = None,
    ) -> None:
        self.device = device
        self.scheduler = scheduler
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop
        self._window_s = window_s
        self._hang_factor = hang_factor
        self._hang_floor_ns = int(hang_floor_s * 1e9)
        self._pool_bytes = pool_bytes
        self._on_lost = on_lost
        self._served: dict[int, ServedModel] = {}
        self._programs = itertools.count()
        self.next_call = itertools.count().__next__
        self._units: dict[int, Unit] = {}
        self._busy_ns = [0] * len(device.spec.workers)
        self._step_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._closed: asyncio.Event
        self._monitor: asyncio.Task[None] | None = None
        self._warmer = ThreadPoolExecutor(1, "warm-up")
        self.lost: str | None = None  # why the device can do no more, once it cannot
        self.refusing: str | None = None

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self.device.start(self._report)
        self._monitor = self.loop.create_task(self._watch_rate(), name="rate-monitor")
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.abort("the server has stopped")
        self._closed.set()
        if self._monitor is not None:
            await self._monitor
        if self._timer is not None:
            self._timer.cancel()
        self._warmer.shutdown(wait=False, cancel_futures=True)
        ended = await asyncio.to_thread(self.device.close, _WORKER_END_S)
        if not ended:
            log.error("a worker did not end within %g s; it is left behind", _WORKER_END_S)

    # programs

    async def start(self, model: Model) -> Served:
        """Warm the model up and open it to calls. Raises ConfigError when it does not do what it declares."""
        spec = self.device.spec
        batching = model.info.batching
        largest = min(batching.max_batch, max(worker.capacity for worker in spec.workers))
        running = largest * len(spec.workers) * spec.push_depth
        model = replace(model, info=replace(model.info, batching=replace(batching, max_batch=largest)))
        model = fit_queue(model, running, self._pool_bytes)
        batching = model.info.batching
        executor = self.device.open(model, batching.max_queue + running)
        profile = await self.loop.run_in_executor(self._warmer, warm_up, executor, largest)
        program = Program(
            id=next(self._programs),
            name=model.info.name,
            stages=(Stage(profile),),
            policy=batching.policy,
            max_batch=largest,
            max_queue=batching.max_queue,
            max_delay_ns=int(batching.max_delay_ms * 1e6),
            length_buckets=batching.length_buckets,
        )
        self.scheduler.add_program(program, self.clock())
        served = ServedModel(self, model, executor, program.id, profile)
        self._served[program.id] = served
        return served

    async def stop(self, served: Served) -> None:
        """Take no more calls, wait for those accepted, free everything."""
        assert isinstance(served, ServedModel)
        await served.drained()
        self.scheduler.remove_program(served.program, self.clock())
        self._served.pop(served.program, None)

    # calls: asked by leases

    def submit(self, lease: Lease) -> None:
        self.scheduler.submit(lease, self.clock())
        if not self._step_due:
            self._step_due = True
            self.loop.call_soon(self._step_if_due)

    def cancel(self, lease: Lease) -> None:
        """The call's handler has gone. Its rows that run finish unheard."""
        self.scheduler.cancel(lease.id, self.clock())
        if not self._step_due:
            self._step_due = True
            self.loop.call_soon(self._step_if_due)

    def abort(self, why: str) -> None:
        """Answer everything that has no answer yet with 503, take no more, and wait for no unit any more."""
        self.refusing = why
        for lease in self._leases():
            lease.fail(NotReady(why, retry_after_s=1))
        for served in self._served.values():
            served.give_up()

    def _leases(self) -> list[Lease]:
        """The calls that have not left."""
        return cast("list[Lease]", list(self.scheduler.calls))

    # the step

    def _step_if_due(self) -> None:
        if self._step_due:
            self._step()

    def _step(self) -> None:
        """Ask the scheduler, and carry out all it says: the device first."""
        self._step_due = False
        now = self.clock()
        step = self.scheduler.step(now)
        for unit in step.start:
            self._start(unit)
        for call in step.done:
            cast("Lease", call).resolve()
        for drop in step.drop:
            self._drop(drop)
        if step.wake_at is not None and (self._timer is None or step.wake_at < self._timer_at):
            self._arm(step.wake_at, now)

    def _arm(self, wake_at: int, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = self.loop.call_later(max(_LEAST_TIMER_S, (wake_at - now) / 1e9), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._step()

    def _start(self, unit: Unit) -> None:
        self._units[unit.id] = unit
        slots = [row.slot for row in unit.rows]
        self.device.push(unit.worker, Job(unit.id, self._served[unit.program].executor, slots, unit.size))

    def _drop(self, drop: Drop) -> None:
        lease = cast("Lease", drop.call)
        lease.fail(_error_of(drop, lease.model, lease, self.lost))
        lease.free_ended()

    # what workers report

    def _report(self, completion: Completion) -> None:
        """Called on a worker's thread."""
        try:
            self.loop.call_soon_threadsafe(self._finished, completion)
        except RuntimeError:  # the loop is closed: nobody waits for this unit any more
            log.warning("a unit of worker %d ended after the server had stopped", completion.worker)

    def _finished(self, completion: Completion) -> None:
        """A unit has ended: tell the scheduler, give the device its next work, then answer."""
        unit = self._units.pop(completion.outcome.unit_id)
        served = self._served.get(unit.program)
        if served is None:  # given up, see `abort`: nobody waits
            return
        now = self.clock()
        self._busy_ns[unit.worker] += now - unit.started
        if completion.ran is not None:
            ran = completion.ran
            parts = (ran.input_ns, ran.infer_ns, ran.output_ns)
            batch = Batch(ran.outputs, unit.started, parts, unit.size)
            for position, row in enumerate(unit.rows):
                lease: Lease = row.call  # type: ignore[assignment]  # a cast would be a call per row
                lease.places[row.index] = (batch, position)
            served.stats.batch_ran(unit.worker, unit.reason, len(unit.rows), parts)
        else:
            self._failed(unit, completion)
        self.scheduler.finished(completion.outcome, now)
        served.free_rows(unit.rows)
        self._step()

    def _failed(self, unit: Unit, completion: Completion) -> None:
        for row in unit.rows:
            cast("Lease", row.call).error = completion.message
        log.log(
            logging.DEBUG if len(unit.rows) > 1 else logging.WARNING,
            "unit of %d rows of %s failed: %s",
            len(unit.rows), self._served[unit.program].info.name, completion.message,
        )  # fmt: skip
        if completion.outcome.error is Fault.DEVICE:
            self._lose(f"worker {unit.worker} has died: {completion.message}")

    def _lose(self, why: str) -> None:
        log.error("the device is lost: %s", why)
        self.lost = why
        self.refusing = f"the device is lost: {why}"
        if self._on_lost is not None:
            self._on_lost(why)

    # health, rate, numbers

    def stuck(self) -> str | None:
        """Why the engine makes no progress, or None.

        Dead: the device is lost or a worker's thread has ended. Hung: the oldest unit in flight has run longer than
        `hang_factor` times its prediction and longer than `hang_floor_s`.
        """
        dead = self.lost or self.device.dead()
        if dead is not None:
            return dead
        now = self.clock()
        for unit in self._units.values():
            age = now - unit.started
            if age > max(self._hang_floor_ns, unit.predicted * self._hang_factor):
                name = self._served[unit.program].info.name
                return (
                    f"a batch of {len(unit.rows)} rows of {name!r} has run {age / 1e9:.1f} s on worker {unit.worker}, "
                    f"predicted {unit.predicted / 1e9:.3f} s"
                )
        return None

    def pending_calls(self, program: int) -> int:
        """Calls admitted and not yet running."""
        return sum(
            1 for lease in self._leases() if lease.program == program and not any(lease.places) and not lease.runs
        )

    def snapshot(self) -> Snapshot:
        """For a scrape."""
        return Snapshot([served.gauges() for served in self._served.values()], [ns / 1e9 for ns in self._busy_ns])

    async def _watch_rate(self) -> None:
        """The one task that waits on time: it closes the rate monitor's window."""
        while not self._closed.is_set():
            try:
                async with asyncio.timeout(self._window_s):
                    await self._closed.wait()
            except TimeoutError:
                self.scheduler.tick(self.clock())


def _error_of(drop: Drop, name: str, lease: Lease, lost: str | None) -> StarlingError:
    if drop.reason is Reason.DEADLINE:
        where = "while it was running" if lease.runs else "in the queue"
        return DeadlineExceeded(f"model {name!r}: the deadline passed {where}")
    if drop.reason is Reason.DEVICE:
        return NotReady(f"the device is lost: {lost}", retry_after_s=1)
    if drop.reason is Reason.CLOSED:
        return NotReady(f"model {name!r} was unloaded", retry_after_s=1)
    row = f" on row {drop.row}" if drop.row > 0 or len(lease.rows) > 1 else ""
    what = "ran out of memory" if drop.reason is Reason.OOM else "failed"
    return ModelFailed(f"model {name!r} {what}{row}: {lease.error}")
