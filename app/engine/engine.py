"""The engine: starts and stops models on one device, and reports health and figures. The driver runs the calls."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from app.contract import Model, Served
from app.engine.device import Device
from app.engine.driver import Driver, OnUnitEnd
from app.engine.executor import Executor
from app.engine.memory import Memory
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.errors import as_config_error
from app.observe.snapshot import Snapshot
from app.scheduler.estimates.profile import Profile
from app.scheduler.policies import policy_for
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import PolicySpec, Program, Stage

log = logging.getLogger("starling.engine")

_WINDOW_S = 1.0  # of the rate monitor
_WORKER_END_S = 2.0  # all calls have been answered by then, so the result of a busy worker is not needed
_HANG_FACTOR = 20  # times its prediction: on a busy machine a batch is a few times slower, but a hung one never ends
#: The most models that warm up at once, so that a slow one does not delay the others. One on a device that captures
#: graphs.
_WARM_UPS = 8


class Engine:
    """Use as `async with Engine(...)`.

    `profiling` measures models, solves their tables, and has the device and the clock. `hang_floor_s`: see `stuck`.
    `on_lost` is called with the reason when the device is lost. `on_tick`, which must not raise, is called at the end
    of each window of the rate monitor. `look`, which must not raise, is called when a few batches have ended, but at
    most every 50 ms: it looks at the memory.
    """

    def __init__(
        self,
        profiling: Profiling,
        scheduler: Scheduler,
        *,
        hang_floor_s: float = 3.0,
        memory: Memory | None = None,
        on_lost: Callable[[str], None] | None = None,
        on_tick: Callable[[], None] = lambda: None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        self.device: Device = profiling.device
        self.profiling = profiling
        self.scheduler = scheduler
        self.clock = profiling.measuring.clock
        self._memory = memory or Memory()
        self.driver = Driver(profiling, scheduler, self._memory, on_lost, look)
        self._models = self.driver.models
        self._hang_floor_ns = int(hang_floor_s * 1e9)
        self._on_tick = on_tick
        self._programs = itertools.count()
        self._closed: asyncio.Event
        self._monitor: asyncio.Task[None]
        self._lag_s = 0.0  # how late the loop ran the last tick
        self._loader = ThreadPoolExecutor(1 if self.device.staged else _WARM_UPS, "warm-up")

    async def __aenter__(self) -> Self:
        self._closed = asyncio.Event()
        self.profiling.bind(self.scheduler, self.driver.step_soon)
        self.driver.start()
        self._monitor = asyncio.create_task(self._watch_rate(), name="rate-monitor")
        self._monitor.add_done_callback(_log_failure)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.abort("the server has stopped")
        self._closed.set()
        await self.profiling.close()
        await asyncio.wait([self._monitor])
        self.driver.stop()
        self._loader.shutdown(wait=False, cancel_futures=True)
        ended = await asyncio.to_thread(self.device.close, _WORKER_END_S)
        if not ended:
            log.error("a worker did not end within %g s; it is left behind", _WORKER_END_S)

    # models

    async def start(self, model: Model) -> Served:
        """Try the model and open it to calls.

        Raises ConfigError if it does not do what it declares, if its rows depend on their batch, or if memory does not
        suffice.
        """
        loop = asyncio.get_running_loop()
        reserved = self._memory.reserve(model, self.device.spec, self.profiling.spare * model.checks.profile)
        model = reserved.model
        with ExitStack() as undo:
            undo.callback(self._memory.release, model)
            executor = await loop.run_in_executor(self._loader, self.device.open, model, reserved.slots)
            undo.callback(self.device.free, executor)
            profiled = await loop.run_in_executor(self._loader, self.profiling.learn, executor)
            alive = self._memory.most_alive(model.info, executor.activations)
            if executor.activations is not None:
                executor.activations.bound(min(alive, reserved.slots))
            program = program_of(next(self._programs), executor, profiled.stage_profiles, alive)
            with as_config_error():  # for a policy that this device cannot serve
                self.scheduler.add_program(program, self.clock())
            undo.pop_all()
        served = ServedModel(model, executor, program.id, profiled, self.driver.intake)
        self._models[program.id] = served
        self.profiling.opened(profiled, program.id, served.stats, reserved.spare)
        return served

    async def stop(self, served: Served) -> None:
        """Refuse new calls, wait for those accepted, and free the model."""
        assert isinstance(served, ServedModel)
        await self.profiling.forget(served.profiled)
        await served.drain()
        self.scheduler.remove_program(served.program, self.clock())
        self._models.pop(served.program, None)
        self.device.free(served.executor)
        self._memory.release(served.model)

    def abort(self, why: str) -> None:
        """Answer all open calls with 503, refuse new ones, and do not wait for running units."""
        self.driver.abort(why)

    # health, rate, numbers

    def stuck(self) -> str | None:
        """Why the engine makes no progress, or None.

        Dead: the device is lost or a worker's thread has ended. Hung: the oldest unit in flight has run longer than
        20 times its prediction and longer than `hang_floor_s`.
        """
        dead = self.driver.lost or self.device.dead()
        if dead is not None:
            return dead
        now = self.clock()
        for unit in self.scheduler.units.values():
            age = now - unit.forecast.begins
            if age > max(self._hang_floor_ns, unit.forecast.predicted * _HANG_FACTOR):
                name = self._models[unit.program].info.name
                return (
                    f"a batch of {len(unit.rows)} rows of {name!r} has run {age / 1e9:.1f} s on worker {unit.worker}, "
                    f"predicted {unit.forecast.predicted / 1e9:.3f} s"
                )
        return None

    def snapshot(self) -> Snapshot:
        """For a scrape and the live page."""
        busy_s = [ns / 1e9 for ns in self.driver.busy_ns]
        models = sorted(self._models.values(), key=lambda served: served.drained is not None)
        return Snapshot([served.gauges() for served in models], busy_s, self._lag_s, self.driver.faults)

    def watch(self, on_unit_end: OnUnitEnd | None) -> None:
        """Call `on_unit_end(unit, outcome, began, ended)` for each unit that ends from now on; None: stop.

        The times are the clock's: when its worker began it, and when the loop got its completion. It is called on the
        event loop before the scheduler's next step, so it must be quick.
        """
        self.driver.on_unit_end = on_unit_end

    async def _watch_rate(self) -> None:
        """The one task that waits on time: it closes the rate monitor's window, and calls `on_tick` then."""
        while not self._closed.is_set():
            began = self.clock()
            try:
                async with asyncio.timeout(_WINDOW_S):
                    await self._closed.wait()
            except TimeoutError:
                now = self.clock()
                # Not by the loop's own clock, which changes only once a turn.
                self._lag_s = max(0.0, (now - began) / 1e9 - _WINDOW_S)
                self.scheduler.tick(now)
                self.driver.step()  # rows that were held may start at another rate
                self.driver.check_if_idle()
                self.profiling.review()
                self._on_tick()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the %s has failed", task.get_name(), exc_info=task.exception())


def program_of(ident: int, executor: Executor, profiles: Sequence[Profile], max_alive: int) -> Program:
    """The program, with a stage for each profile; a model that runs by its cell has one stage that repeats."""
    info, steps = executor.model.info, executor.steps
    batching = info.batching
    stages = tuple(map(Stage, profiles))
    if steps is not None:
        stages = (Stage(profiles[0], repeats=True, most_steps=steps.most, own_steps=steps.own),)
    return Program(
        id=ident,
        name=info.name,
        stages=stages,
        policy=PolicySpec(
            policy_for(batching.policy, batching.objective),
            max_delay_ns=int(batching.max_delay_ms * 1e6),
            reorder=batching.reorder,
            complete_wait=batching.complete_wait,
        ),
        max_batch=batching.max_batch,
        max_queue=batching.max_queue,
        length_buckets=batching.length_buckets,
        max_alive=max_alive,
        one_unit=executor.one_unit,
    )
