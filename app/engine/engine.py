"""The asyncio driver of the scheduler: the only live caller of it, and the owner of its timer.

The driver's rule: after each input, `step` once, and carry out all of the Step. Inputs that arrive in one turn of the
loop share a step; a finished unit is followed by one at once. Everything here runs on the event loop.

The order of work on the loop: all of real time before all of best effort.
    real time     Where a step starts real-time units only, the device gets them first, and works while the answers are
                  given. Otherwise the answers are given first.
    best effort   Its units start in a step of their own, after the loop has polled its sockets once: a real-time
                  request that can be read by then goes before them. Its answers follow in pieces; the loop polls its
                  sockets between two of them.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import Any, Self, cast

from app.contract import Model, Plan, Served
from app.engine.device import Completion, Device, Executor
from app.engine.in_flight import InFlight
from app.engine.lease import Lease
from app.engine.observed import tell_of_unit
from app.engine.pool import Pool, Slots
from app.engine.profiling.cache import Known
from app.engine.profiling.energy import EnergyMeter, Watts
from app.engine.profiling.service import Profiling
from app.engine.program import fit, most_alive, over_budget, over_memory, program_of, stage_profiles
from app.engine.served_model import ServedModel
from app.errors import ConfigError, NotReady
from app.observe.metrics import Snapshot
from app.observe.tracing.tracer import Tracer
from app.scheduler.forming.classes import Pairs
from app.scheduler.optimal.tables import ControlTables
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Call, Fault, Outcome, Profile, Step, Unit

log = logging.getLogger("starling.engine")

_WORKER_END_S = 2.0  # everything has been answered by then: a worker still at work hangs, or works for nobody
_UNSURE = 0.05  # error of batch times, from which on the log says that they are not well known
_LEAST_TIMER_S = 0.001  # loops round to milliseconds; an earlier timer would wake up before its time
_PIECE = 4  # best-effort answers between two polls: an answer takes some 20 us, a turn of the loop as much


class Engine:
    """Use as `async with Engine(...)`. Implements contract.ModelHost.

    `clock` gives monotonic nanoseconds. `window_s` is the rate monitor's window; `on_tick`, which raises nothing, is
    called at its end. `hang_factor`, `hang_floor_s`: see `stuck`. `profiling` measures models and solves their tables,
    and brings the device. The scheduler is told when a step of a recurrent model is on its stream, where the next may
    be pushed behind it. `tracer` is told of units that have ended.
    """

    def __init__(
        self,
        profiling: Profiling,
        scheduler: Scheduler,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        window_s: float = 1.0,
        hang_factor: float = 20.0,
        hang_floor_s: float = 3.0,
        pool_bytes: int = 512 << 20,
        activation_bytes: int = 512 << 20,
        body_bytes: int = 0,
        memory_bytes: int | None = None,
        on_lost: Callable[[str], None] | None = None,
        meter: EnergyMeter | None = None,
        on_tick: Callable[[], None] = lambda: None,
        tracer: Tracer | None = None,
    ) -> None:
        self.device: Device = profiling.device
        self.profiling = profiling
        self.scheduler = scheduler
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop
        self._tracer = tracer
        self._meter = meter or EnergyMeter([])
        self._window_s = window_s
        self._hang_factor = hang_factor
        self._hang_floor_ns = int(hang_floor_s * 1e9)
        self._pool_bytes = pool_bytes
        self._activation_bytes = activation_bytes
        self._body_bytes, self._memory_bytes = body_bytes, memory_bytes
        self._on_lost = on_lost
        self._on_tick = on_tick
        self._served: dict[int, ServedModel] = {}
        self._programs = itertools.count()
        self.next_call = itertools.count().__next__
        self._in_flight = InFlight(self.device, scheduler, clock, self._served)
        self._step_due = False
        self._held = False  # the last step held best-effort units
        self._unanswered: deque[Lease] = deque()  # best-effort calls that have ended
        self._poll: asyncio.TimerHandle | None = None  # of `_after_poll`
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._closed: asyncio.Event
        self._monitor: asyncio.Task[None] | None = None
        self._lag_s = 0.0  # how late the loop turned to the last tick
        self._loader = ThreadPoolExecutor(1, "warm-up")
        self.lost: str | None = None  # why the device can do no more, once it cannot
        self.refusing: str | None = None

    async def __aenter__(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self._closed = asyncio.Event()
        self.profiling.bind(self._adopt, self._control, self._pair)
        self.device.start(self._report, self._acknowledge if self.device.spec.steps_ahead else None, self._release)
        self._monitor = self.loop.create_task(self._watch_rate(), name="rate-monitor")
        self._monitor.add_done_callback(_log_failure)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.abort("the server has stopped")
        self._closed.set()
        await self.profiling.close()
        if self._monitor is not None:
            await asyncio.wait([self._monitor])
        for timer in (self._timer, self._poll):
            if timer is not None:
                timer.cancel()
        self._loader.shutdown(wait=False, cancel_futures=True)
        ended = await asyncio.to_thread(self.device.close, _WORKER_END_S)
        if not ended:
            log.error("a worker did not end within %g s; it is left behind", _WORKER_END_S)

    # programs

    async def start(self, model: Model) -> Served:
        """Try the model and open it to calls.

        Raises ConfigError when it does not do what it declares, or when its rows depend on their batch.
        """
        spec = self.device.spec
        model, spare, slots = fit(model, spec, self.profiling.spare * model.profile, self._pool_bytes)
        largest = model.info.batching.max_batch
        executor = await self.loop.run_in_executor(self._loader, self.device.open, model, slots)
        try:
            learned = await self.loop.run_in_executor(self._loader, self.profiling.learn, executor, largest)
        except BaseException:
            self.device.free(executor)
            raise
        profiles = self._profiles(executor, learned.known)
        alive = most_alive(model.info, executor.activations, self._activation_bytes)
        program = program_of(next(self._programs), model.info, profiles, executor.steps, alive)
        try:
            self.scheduler.add_program(program, self.clock())
        except ValueError as exc:  # a policy that this device cannot serve
            self.device.free(executor)
            raise ConfigError(f"model {program.name!r}: {exc}") from None
        served = ServedModel(self, model, executor, program.id, learned.known)
        self._served[program.id] = served
        self._tell_if_over_budget(served, profiles)
        self._tell_if_over_memory()
        self.profiling.opened(served, learned, spare)
        return served

    def _tell_if_over_memory(self) -> None:
        models = self._served.values()
        slots = sum(served.pool.nbytes for served in models)
        between = sum(self._activation_bytes for served in models if served.executor.activations is not None)
        told = over_memory(self._memory_bytes, len(models), slots, between, self._body_bytes)
        if told is not None:
            log.warning("%s", told)

    def _tell_if_over_budget(self, served: ServedModel, profiles: Sequence[Profile]) -> None:
        budget_ns, cell = self.scheduler.device.classes.budget_ns, served.executor.steps is not None
        if (told := over_budget(profiles, budget_ns, cell=cell)) is not None:
            log.info("model %s: %s", served.info.name, told)

    def _profiles(self, executor: Executor, known: Known) -> list[Profile]:
        stages, running = len(executor.model.stages), self.device.spec.max_running
        return stage_profiles(known.profile, stages, running, cell=executor.steps is not None)

    def _adopt(self, served: ServedModel, known: Known) -> None:
        """A model's profile has been measured: the scheduler hears of it as of any other input."""
        served.known = known
        profiles = self._profiles(served.executor, known)
        for stage, profile in enumerate(profiles):
            self.scheduler.reprofile(served.program, profile, self.clock(), stage)
        self._step()
        self._tell_if_over_budget(served, profiles)
        times, errors = known.profile.batch_ns, known.profile.errors or (0.0,)
        log.info(
            "model %s: measured: a row %.3g ms, %d rows %.3g ms, known to %.1f %%%s",
            served.info.name, times[0] / 1e6, len(times), times[-1] / 1e6, 100 * median(errors),
            "; batches of calls will tell more" if median(errors) > _UNSURE else "",
        )  # fmt: skip

    def _control(self, served: ServedModel, tables: ControlTables) -> None:
        """A model's control tables have been solved."""
        self.scheduler.control(served.program, tables, self.clock())
        self._step()

    def _pair(self, pairs: Pairs) -> None:
        """A program has come or is going, with which others were measured side by side."""
        self.scheduler.pair(pairs, self.clock())
        self._step_soon()

    async def stop(self, served: Served) -> None:
        """Take no more calls, wait for those accepted, free everything."""
        assert isinstance(served, ServedModel)
        await self.profiling.forget(served)
        await served.drained()
        self.scheduler.remove_program(served.program, self.clock())
        self._served.pop(served.program, None)
        self.device.free(served.executor)

    # calls: asked by served models

    def submit(self, call: Call) -> int:
        """A call comes, at the time returned. The step follows at the end of this turn of the loop."""
        now = self.clock()
        self.scheduler.submit(call, now)
        self._step_soon()
        return now

    def cancel(self, call: Call) -> None:
        """A call's caller has gone. Its rows that run finish unheard."""
        self.scheduler.cancel(call.id, self.clock())
        self._step_soon()

    def abort(self, why: str) -> None:
        """Answer everything that has no answer yet with 503, take no more, and wait for no unit any more."""
        self.refusing = why
        self._answer_best_effort(len(self._unanswered))
        for call in list(self.scheduler.calls):
            if (serving := self._served.get(call.program)) is not None:
                serving.fail(call, NotReady(why, retry_after_s=1))
        for served in self._served.values():
            served.give_up()

    # the step

    def _step_soon(self) -> None:
        if not self._step_due:
            self._step_due = True
            self.loop.call_soon(self._step_if_due)

    def _step_if_due(self) -> None:
        if self._step_due:
            self._step()

    def _step(self, *, hold: bool = True) -> None:
        """Ask the scheduler, and carry out all it says. `hold`: best-effort units wait for the sockets to be polled."""
        self._carry_out(self._ask(hold=hold))

    def _ask(self, *, hold: bool = True) -> Step:
        """Ask the scheduler, and start the units if all are real-time; `_carry_out` is to follow."""
        self._step_due = False
        step = self._in_flight.step(hold=hold)
        if step.start and not step.start[-1].klass:  # the last: they are in order of class
            self._in_flight.start(step.start)
            if step.done:
                self.device.let_begin()  # the loop keeps the interpreter lock for as long as answering takes
        return step

    def _carry_out(self, step: Step) -> None:
        """The rest of a Step, in the order of this module's text."""
        for call in step.done:
            if call.klass:
                self._unanswered.append(cast("Lease", call))
            else:
                cast("Lease", call).resolve()
        if step.start and step.start[-1].klass:
            self._in_flight.start(step.start)
            if self._unanswered:
                self.device.let_begin()  # as in `_ask`
        for drop in step.drop:
            if (served := self._served.get(drop.call.program)) is not None:
                served.drop(drop, self.lost)
        if step.wake_at is not None and (self._timer is None or step.wake_at < self._timer_at):
            self._arm(step.wake_at)
        self._held = step.held
        if step.held or self._unanswered:
            self._poll_first()
        if step.withdraw and self._in_flight.withdraw(step.withdraw):  # each is asked for once, so this ends
            self._step()

    def _poll_first(self) -> None:
        """Turn to best-effort work when the loop has polled its sockets once."""
        if self._poll is None:
            # Not `call_soon`: asyncio would call it before the readers of the sockets that it has polled.
            self._poll = self.loop.call_later(0, self._after_poll)

    def _after_poll(self) -> None:
        self._poll = None
        if self._held:
            self._step(hold=False)
        self._answer_best_effort(_PIECE)
        if self._unanswered:
            self._poll_first()

    def _answer_best_effort(self, most: int) -> None:
        for _ in range(min(most, len(self._unanswered))):
            self._unanswered.popleft().resolve()

    def _arm(self, wake_at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = self.loop.call_later(max(_LEAST_TIMER_S, (wake_at - self.clock()) / 1e9), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._step()

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
        if unit_id in self._in_flight.units:
            self.scheduler.launched(unit_id, self.clock())
            self._step()

    def _release(self, pool: Pool, slots: Slots) -> None:
        """Called on a device's thread: nothing reads the rows of these slots any more, which were given back before."""
        self._on_loop(self._released, pool, slots)

    def _released(self, pool: Pool, slots: Slots) -> None:
        for served in self._served.values():
            if served.pool is pool:
                served.give_back(slots)

    def _on_loop(self, what: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(what, *args)

    def _finished(self, completion: Completion) -> None:
        """A unit has ended: tell the scheduler, and carry out the step that follows."""
        outcome = completion.outcome
        if outcome.error is Fault.DEVICE:
            self._lose(f"worker {completion.worker} has died: {completion.message}")
        now = self.clock()
        unit = self._in_flight.end(outcome, now)
        if unit is None:  # of a measurement: its end is heard here only when the device has ended with it
            if self.lost is not None:
                self.abort(f"the device is lost: {self.lost}")
            return
        served = self._served.get(unit.program)
        if served is None:  # given up, see `abort`: nobody waits
            return
        following = self.scheduler.finished(outcome, now)
        if following is not None:
            self._in_flight.go_on(following)
        if served.holds_more():
            alive = most_alive(served.model.info, served.executor.activations, self._activation_bytes)
            self.scheduler.bound(served.program, alive, now)
        step = self._ask()
        if completion.ran is not None:
            served.ran(unit, completion.ran, now)
        else:
            served.failed(unit, completion)
        if self._tracer is not None:
            tell_of_unit(self._tracer, served, unit, completion, now)
        served.free_rows(unit.rows)
        self._carry_out(step)

    def _lose(self, why: str) -> None:
        if self.lost is not None:  # units in flight all say so
            return
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
        for unit in self._in_flight.units.values():
            age = now - self._in_flight.began(unit)
            if age > max(self._hang_floor_ns, unit.predicted * self._hang_factor):
                name = self._served[unit.program].info.name
                return (
                    f"a batch of {len(unit.rows)} rows of {name!r} has run {age / 1e9:.1f} s on worker {unit.worker}, "
                    f"predicted {unit.predicted / 1e9:.3f} s"
                )
        return None

    def snapshot(self) -> Snapshot:
        """For a scrape."""
        busy_s = [ns / 1e9 for ns in self._in_flight.busy_ns]
        gauges = [served.gauges() for served in self._served.values()]
        return Snapshot(gauges, busy_s, lambda: self._meter.read(sum(busy_s), self._watts()), self._lag_s)

    def plans(self) -> list[Plan]:
        """What batches are planned with: of each model of a `snapshot`, in its order."""
        return [served.plan() for served in self._served.values()]

    def watch(self, heard: Callable[[Unit, Outcome, int, int], None] | None) -> None:
        """From now on `heard(unit, outcome, began, ended)` is called for each unit that ends; None: for none any more.

        Both times are the clock's: when its worker turned to it, and when the loop heard that it had ended. Called on
        the event loop before the scheduler is told, so it must be quick.
        """
        self._in_flight.on_end = heard

    def _watts(self) -> Watts | None:
        """What the device draws idle and busy, as the first profile that knows says."""
        powers = (served.known.profile.power for served in self._served.values())
        return next(((power.idle, power.busy) for power in powers if power is not None), None)

    async def _watch_rate(self) -> None:
        """The one task that waits on time: it closes the rate monitor's window, and calls `on_tick` then."""
        while not self._closed.is_set():
            began = self.clock()
            try:
                async with asyncio.timeout(self._window_s):
                    await self._closed.wait()
            except TimeoutError:
                now = self.clock()
                self._lag_s = max(0.0, (now - began) / 1e9 - self._window_s)  # loops' own clocks stand in each turn
                self.scheduler.tick(now)
                self._step()  # rows that were held may go at another rate
                for served in self._served.values():
                    self.profiling.review(served, self.scheduler.live_times(served.program))
                    served.pool.tick()
                self._on_tick()


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("the %s has failed", task.get_name(), exc_info=task.exception())
