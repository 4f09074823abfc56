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
from contextlib import suppress
from typing import Self, cast

from app.contract import Model, Served
from app.engine.devices.cpu.device import Device
from app.engine.devices.cpu.worker import Completion, Job
from app.engine.devices.pool import Pool, Slots
from app.engine.lease import Batch, Lease, error_of
from app.engine.profiling.cache import ProfileCache
from app.engine.profiling.energy import EnergyMeter, Watts
from app.engine.profiling.idle import IdleProfiler, Known, is_whole, know, set_apart
from app.engine.profiling.tables import TableSolver
from app.engine.profiling.warmup import fit, program_of
from app.engine.served_model import ServedModel
from app.errors import ConfigError, NotReady
from app.metrics import Snapshot
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Drop, Fault, Unit

log = logging.getLogger("starling.engine")

_WORKER_END_S = 2.0  # everything has been answered by then: a worker still at work hangs, or works for nobody
_LEAST_TIMER_S = 0.001  # loops round to milliseconds; an earlier timer would wake up before its time


class Engine:
    """Use as `async with Engine(...)`. Implements contract.ModelHost.

    `clock` gives monotonic nanoseconds. `window_s` is the rate monitor's window.
    `hang_factor`, `hang_floor_s`: see `stuck`. `profiles` is where measured batch times are kept; `profile_budget_s` is
    the time that measuring a model may take, once `profiler.begin` was called. `acknowledges`: the scheduler is told
    when a unit is on its stream, which costs a callback into the loop for each.
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
        profiles: ProfileCache | None = None,
        profile_budget_s: float = 0.0,
        on_lost: Callable[[str], None] | None = None,
        meter: EnergyMeter | None = None,
        acknowledges: bool = False,
    ) -> None:
        self.device = device
        self._staged = device.staged
        self._acknowledges = acknowledges
        self._meter = meter or EnergyMeter([])
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
        self.profiler = IdleProfiler(self, profiles, profile_budget_s, self._adopt)
        self.tables = TableSolver(device.spec.max_running, profiles.folder if profiles else None, self._control)
        self.lost: str | None = None  # why the device can do no more, once it cannot
        self.refusing: str | None = None

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self.device.start(self._report, self._acknowledge if self._acknowledges else None, self._release)
        self._monitor = self.loop.create_task(self._watch_rate(), name="rate-monitor")
        self._monitor.add_done_callback(_tell_failure)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.abort("the server has stopped")
        self._closed.set()
        await self.profiler.close()
        await self.tables.close()
        if self._monitor is not None:
            await asyncio.wait([self._monitor])
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
        model, spare, slots = fit(model, spec, self.profiler.spare, self._pool_bytes)
        largest = model.info.batching.max_batch
        executor = await self.loop.run_in_executor(self._warmer, self.device.open, model, slots)
        try:
            known, key = await self.loop.run_in_executor(
                self._warmer, know, executor, largest, self.device, self.profiler.cache
            )
        except BaseException:
            self.device.free(executor)
            raise
        program = program_of(next(self._programs), model.info, known.profile.stage(spec.max_running))
        try:
            self.scheduler.add_program(program, self.clock())
        except ValueError as exc:  # a policy that this device cannot serve
            self.device.free(executor)
            raise ConfigError(f"model {program.name!r}: {exc}") from None
        served = ServedModel(self, model, executor, program.id, known)
        self._served[program.id] = served
        self.tables.want(served)
        if spare and not is_whole(known, self.device):
            served.key, served.spare = key, set_apart(executor.pool, spare)
            self.profiler.want(served)
        return served

    def _adopt(self, served: ServedModel, known: Known) -> None:
        """A model's profile has been measured: the scheduler hears of it as of any other input."""
        served.known = known
        self.scheduler.reprofile(served.program, known.profile.stage(self.device.spec.max_running), self.clock())
        self._step()
        self.tables.want(served)
        times = known.profile.batch_ns
        log.info(
            "model %s: measured: a row %.3g ms, %d rows %.3g ms",
            served.info.name, times[0] / 1e6, len(times), times[-1] / 1e6,
        )  # fmt: skip

    def _control(self, served: ServedModel, tables: ControlTables) -> None:
        """A model's control tables have been solved."""
        self.scheduler.control(served.program, tables, self.clock())
        self._step()

    async def stop(self, served: Served) -> None:
        """Take no more calls, wait for those accepted, free everything."""
        assert isinstance(served, ServedModel)
        self.profiler.forget(served)
        await served.drained()
        self.scheduler.remove_program(served.program, self.clock())
        self._served.pop(served.program, None)
        self.device.free(served.executor)

    # calls: asked by leases

    def submit(self, lease: Lease) -> None:
        if self._staged:
            self.device.arrive(self._served[lease.program].executor, lease.slots)
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
        if self.profiler.watching:
            self.profiler.moved()

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
        job = Job(unit.id, self._served[unit.program].executor, slots, unit.size)
        if unit.worker in self.profiler.kept:
            self.profiler.kept[unit.worker].append(job)
        else:
            self.device.push(unit.worker, job)

    def _drop(self, drop: Drop) -> None:
        lease = cast("Lease", drop.call)
        lease.fail(error_of(drop, lease, self.lost))
        lease.free_ended()

    # what workers report

    def _report(self, completion: Completion) -> None:
        """Called on a worker's thread."""
        try:
            self.loop.call_soon_threadsafe(self._finished, completion)
        except RuntimeError:  # the loop is closed: nobody waits for this unit any more
            log.warning("a unit of worker %d ended after the server had stopped", completion.worker)

    def _acknowledge(self, unit_id: int) -> None:
        """Called on a device's thread: the unit is on its stream."""
        self._on_loop(self._unit_launched, unit_id)

    def _unit_launched(self, unit_id: int) -> None:
        if unit_id in self._units:
            self.scheduler.launched(unit_id, self.clock())
            self._step()

    def _release(self, pool: Pool, slots: Slots) -> None:
        """Called on a device's thread: nothing reads the rows of these slots any more, which were given back before."""
        self._on_loop(self._released, pool, slots)

    def _released(self, pool: Pool, slots: Slots) -> None:
        for served in self._served.values():
            if served.pool is pool:
                served.give_back(slots)

    def _on_loop(self, what: Callable[..., object], *args: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(what, *args)

    def _finished(self, completion: Completion) -> None:
        """A unit has ended: tell the scheduler, give the device its next work, then answer."""
        unit = self._units.pop(completion.outcome.unit_id, None)
        if unit is None:
            self._measured(completion)
            return
        served = self._served.get(unit.program)
        if served is None:  # given up, see `abort`: nobody waits
            return
        now = self.clock()
        self._busy_ns[unit.worker] += now - unit.started
        if completion.ran is not None:
            ran = completion.ran
            parts = (ran.input_ns, ran.infer_ns, ran.output_ns)
            batch = Batch(ran.outputs, unit.started, parts, len(unit.rows))
            for position, row in enumerate(unit.rows):
                lease: Lease = row.call  # type: ignore[assignment]  # a cast would be a call per row
                lease.places[row.index] = (batch, position)
            served.stats.batch_ran(unit.worker, unit.reason, len(unit.rows), parts)
        else:
            self._failed(unit, completion)
        self.scheduler.finished(completion.outcome, now)
        served.free_rows(unit.rows)
        self._step()

    def _measured(self, completion: Completion) -> None:
        """A unit of the profiler has ended."""
        if completion.outcome.error is Fault.DEVICE:
            self._lose(f"worker {completion.worker} has died: {completion.message}")
            self.abort(f"the device is lost: {self.lost}")
        self.profiler.ended(completion)

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
        if self.lost is not None:  # units in flight all say so
            return
        log.error("the device is lost: %s", why)
        self.lost = why
        self.refusing = f"the device is lost: {why}"
        if self._on_lost is not None:
            self._on_lost(why)

    # health, rate, numbers

    @property
    def busy(self) -> bool:
        """Some call has not left, or some unit runs."""
        return bool(self._units) or any(True for _ in self.scheduler.calls)

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
        busy_s = [ns / 1e9 for ns in self._busy_ns]
        gauges = [served.gauges() for served in self._served.values()]
        return Snapshot(gauges, busy_s, lambda: self._meter.read(sum(busy_s), self._watts()))

    def _watts(self) -> Watts | None:
        """What the device draws idle and busy, as the first profile that knows says."""
        powers = (served.known.profile.power for served in self._served.values())
        return next(((power.idle, power.busy) for power in powers if power is not None), None)

    async def _watch_rate(self) -> None:
        """The one task that waits on time: it closes the rate monitor's window."""
        while not self._closed.is_set():
            try:
                async with asyncio.timeout(self._window_s):
                    await self._closed.wait()
            except TimeoutError:
                self.scheduler.tick(self.clock())
                self._step()  # rows that were held may go at another rate


def _tell_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the %s has failed", task.get_name(), exc_info=task.exception())
