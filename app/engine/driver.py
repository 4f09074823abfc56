"""The live driver of the scheduler: asks it for a Step after each input, carries that out, and owns its timer.

Inputs that arrive in one turn of the loop share a step; a finished unit is followed by one at once. If a step starts
real-time units only, the device gets them before answers are given. Best-effort units start in a step of their own,
after the loop has polled its sockets once; best-effort answers are given a few at a time. Everything here runs on the
event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import Any, cast

from app.engine.device import Completion
from app.engine.executor import Job, Stop
from app.engine.lease import Intake, Lease
from app.engine.memory import Memory
from app.engine.profiling.service import Profiling
from app.engine.served_model import ServedModel
from app.errors import NotReady
from app.scheduler.scheduler import Scheduler
from app.scheduler.types import Fault, Klass, Outcome, Row, Unit

log = logging.getLogger("starling.engine")

_BEST_EFFORT = Klass.BEST_EFFORT
_LEAST_TIMER_S = 0.001  # loops round to milliseconds: a shorter timer would fire too early
_slot: Callable[[Row], int] = attrgetter("slot")
_LOOK_NS, _LOOK_UNITS = 50_000_000, 8  # between two calls of `look` at least so much time, and so many units
_PIECE = 4  # best-effort answers between two polls: an answer takes some 20 us, and so does a turn of the loop

#: Called with a unit that has ended, its outcome, and the times at which it began and ended, see `Engine.watch`.
OnUnitEnd = Callable[[Unit, Outcome, int, int], None]


class Driver:
    """Calls enter through its `intake`. Methods are called on the event loop, except those at the end.

    `models`: those that serve, by program. `lost`: why the device is lost, or None; `on_lost` is called with it once.
    `on_unit_end`: see `Engine.watch`. `look`: see Engine.
    """

    def __init__(
        self,
        profiling: Profiling,
        scheduler: Scheduler,
        memory: Memory,
        on_lost: Callable[[str], None] | None,
        look: Callable[[], None],
    ) -> None:
        self.device = device = profiling.device
        self.scheduler = scheduler
        self.clock = clock = profiling.measuring.clock
        self.intake = Intake(scheduler, device, clock, self.step_soon)
        self.models: dict[int, ServedModel] = {}
        self.lost: str | None = None
        self.faults = 0  # ticks at which something was left of calls that had gone
        self._left: dict[str, int] = {}  # at the last tick
        self.on_unit_end: OnUnitEnd | None = None
        self._measuring = profiling.measuring
        self._measuring.idle_since = self._idle_since
        self._memory = memory
        self._on_lost = on_lost
        self._look = look
        self._ended, self._look_at = 0, 0  # units since the last `look`, and the time before which there is no other
        self._loop: asyncio.AbstractEventLoop
        # units on the device
        self._stops: dict[int, Stop] = {}  # of units that may be stopped
        self.busy_ns = [0] * len(device.spec.workers)
        self._last_end = 0  # of a unit
        # the next step
        self._due: asyncio.Handle | None = None  # of the step at the end of this turn
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        # best-effort work that waits until the sockets have been polled
        self._held = False  # the last step held units
        self._unanswered: deque[Lease] = deque()  # calls that have ended and are not answered yet
        self._poll: asyncio.TimerHandle | None = None  # of `_after_poll`

    def start(self) -> None:
        """Start the device. On the event loop."""
        self._loop = asyncio.get_running_loop()
        self.device.start(partial(self._on_loop, self._finished))

    def stop(self) -> None:
        """Ask for no more steps."""
        for timer in (self._timer, self._poll):
            if timer is not None:
                timer.cancel()

    def check_if_idle(self) -> None:
        """While no call is here and no unit runs, nothing may be left of any: neither counts nor slots. Takes a few us.

        What is left at two ticks in a row is a fault: it is counted in `faults`, and logged when it is new. (A device
        of streams may keep a slot until its copy has ended.)
        """
        left = self._leftovers()
        if left and self._left:
            self.faults += 1
            if self.faults == 1 or left != self._left:
                log.error("nothing is being served, but there are still %s: please report this", left)
        self._left = left

    def _leftovers(self) -> dict[str, int]:
        models = self.models.values()
        if (
            self.lost
            or self.scheduler.units
            or any(self.scheduler.calls)
            or any(any(served.reserved) for served in models)
        ):
            return {}
        slots = sum(served.pool.used for served in models)
        return self.scheduler.leftovers | ({"slots": slots} if slots else {})

    def abort(self, why: str) -> None:
        """Answer everything that has no answer yet with 503, take no more, and wait for no unit any more."""
        self.intake.refusing = why
        self._answer_best_effort(len(self._unanswered))
        for call in list(self.scheduler.calls):
            if call.program in self.models:
                cast("Lease", call).fail(NotReady(why, retry_after_s=1))
        for served in self.models.values():
            served.give_up()

    # steps

    def step_soon(self) -> None:
        """There was an input: take a step at the end of this turn of the loop."""
        if self._due is None:
            self._due = self._loop.call_soon(self.step)

    def step(self, *, hold: bool = True, record_unit: Callable[[], None] | None = None) -> None:
        """The driver's rule: ask the scheduler once, and carry out all of its Step, in the order of this module's text.

        `hold`: best-effort units wait until the sockets have been polled. `record_unit`: stores the outputs of a unit
        that has ended. It is called before answers are given, but after real-time units have been started.
        """
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._stops:
            self._report_progress()
        step = self.scheduler.step(self.clock(), hold=hold)
        for unit in step.recall:
            if (stop := self._stops.get(unit.id)) is not None:  # else `_start` tells it, or its model was given up
                stop.now = True
        for unit in step.end_at_next_row:
            if (stop := self._stops.get(unit.id)) is not None:
                stop.at_next_row = True
        # Units are in order of class, so the last one tells whether any is best effort.
        best_effort = bool(step.start) and step.start[-1].klass is _BEST_EFFORT
        if step.start and not best_effort:
            self._start(step.start)
            if step.done:
                self.device.wait_until_begun()  # the loop keeps the interpreter lock for as long as answering takes
        if record_unit is not None:
            record_unit()
        lease: Lease
        for lease in step.done:  # type: ignore[assignment]  # a cast would be a function call per request
            if lease.klass is _BEST_EFFORT:
                self._unanswered.append(lease)
            else:
                lease.resolve()
        if best_effort:
            self._start(step.start)
            if self._unanswered:
                self.device.wait_until_begun()  # as above
        for drop in step.drop:
            if (served := self.models.get(drop.call.program)) is not None:
                served.drop(drop)
        if step.wake_at is not None and (self._timer is None or step.wake_at < self._timer_at):
            self._arm(step.wake_at)
        self._held = step.held
        if step.held or self._unanswered:
            self._poll_first()

    def _arm(self, wake_at: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = wake_at
        self._timer = self._loop.call_later(max(_LEAST_TIMER_S, (wake_at - self.clock()) / 1e9), self._wake)

    def _wake(self) -> None:
        self._timer = None
        self.step()

    # best effort

    def _poll_first(self) -> None:
        """Continue with best-effort work after the loop has polled its sockets once."""
        if self._poll is None:
            # Not `call_soon`: asyncio would call it before the callbacks of the sockets that it has polled.
            self._poll = self._loop.call_later(0, self._after_poll)

    def _after_poll(self) -> None:
        self._poll = None
        if self._held:
            self.step(hold=False)
        self._answer_best_effort(_PIECE)
        if self._unanswered:
            self._poll_first()

    def _answer_best_effort(self, most: int) -> None:
        for _ in range(min(most, len(self._unanswered))):
            self._unanswered.popleft().resolve()

    # units

    def _start(self, units: Sequence[Unit]) -> None:
        """Hand the units of a Step to their workers."""
        for unit in units:
            served, course = self.models[unit.program], unit.course
            stop = Stop(now=course.recalled, at_next_row=not course.continue_without)  # both may be of this very step
            job = Job(
                unit.id, served.executor, list(map(_slot, unit.rows)), unit.size, unit.stage, course.steps,
                unit.klass, served.readers(unit, self._on_loop) if served.model.writes else None,
            )  # fmt: skip
            if course.steps > 1 or course.continue_without:
                self._stops[unit.id] = stop
            self.device.push(unit.worker, job, stop)

    def _report_progress(self) -> None:
        """Tell the scheduler how many steps the running units have made."""
        for unit_id, stop in self._stops.items():
            if (unit := self.scheduler.units.get(unit_id)) is not None and stop.made > unit.course.progress:
                self.scheduler.progressed(unit_id, stop.made, self.clock())

    def _finished(self, completion: Completion) -> None:
        """A unit has ended: report it to the scheduler, take a step, and record its outputs."""
        outcome = completion.outcome
        if outcome.error is Fault.DEVICE:
            self._lose(f"worker {completion.worker} has died: {completion.message}")
        now = self.clock()
        unit = self.scheduler.units.get(outcome.unit_id)
        if unit is None:
            if outcome.unit_id < 0:
                self._measuring.ended(completion)
            if self.lost is not None:
                self.abort(f"the device is lost: {self.lost}")
            return
        if not outcome.continues:
            self._stops.pop(unit.id, None)
        began = unit.forecast.begins  # of a unit pushed behind another the end of that one, by now
        self.busy_ns[unit.worker] += now - began
        self._last_end = now
        if self.on_unit_end is not None:
            self.on_unit_end(unit, outcome, began, now)
        served = self.models.get(unit.program)
        self.scheduler.finished(outcome, now)
        if served is None:  # it was given up (`abort`): nothing waits for it
            return
        if served.activations is not None and served.takes_more_memory():
            alive = self._memory.most_alive(served.model.info, served.activations)
            self.scheduler.bound(served.program, alive, now)
        self.step(record_unit=partial(served.unit_ended, unit, completion, now))
        self._ended += 1
        if self._ended >= _LOOK_UNITS and now >= self._look_at:
            self._ended, self._look_at = 0, now + _LOOK_NS
            self._look()

    def _idle_since(self) -> int | None:
        """When the last unit ended; None while units are on the device."""
        return None if self.scheduler.units else self._last_end

    def _lose(self, why: str) -> None:
        if self.lost is not None:  # every unit in flight reports it
            return
        log.error("the device is lost: %s", why)
        self.lost = why
        self.intake.refusing = f"the device is lost: {why}"
        if self._on_lost is not None:
            self._on_lost(why)

    # called on the device's threads

    def _on_loop(self, what: Callable[..., object], *args: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed: nothing waits any more, and the log says who was left behind
            self._loop.call_soon_threadsafe(what, *args)
