"""A Scheduler driven over a trace in virtual time, its invariants checked by a Book after every Step.

Events at one time come in the order finished, cancel, submit, tick, wake. `finished` has a step of its own; the others
of one time share one. A unit begins when those pushed to its worker before it have ended, and takes its predicted time
or, with a seed, a random multiple of it.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Any

from app.scheduler.estimates.profile import Profile
from app.scheduler.record import Entry, RecordingScheduler
from app.scheduler.types import (
    Call,
    DeviceSpec,
    Fault,
    Klass,
    Outcome,
    PolicySpec,
    Program,
    Refusal,
    Row,
    Stage,
    Step,
    Unit,
    WorkerSpec,
)

from .book import Book

SERVICE_NS = 100  # of a batch of which nothing is known
MAX_STEPS = 20_000  # far beyond any trace here


def make_device(*capacities: int, max_running: int | None = None, **options: Any) -> DeviceSpec:
    """One worker for each capacity; all may run at once unless told otherwise."""
    workers = tuple(WorkerSpec(capacity) for capacity in capacities)
    return DeviceSpec(workers, max_running=len(workers) if max_running is None else max_running, **options)


def make_program(ident: int = 1, *, batch_ns: tuple[int, ...] = (), **options: object) -> Program:
    """A program of one stage with these batch times. `options`: of it, and of its policy."""
    options.setdefault("stages", (Stage(Profile(batch_ns)),))
    told = {name: options.pop(name) for name in ("max_delay_ns", "reorder", "complete_wait") if name in options}
    options["policy"] = PolicySpec(str(options.get("policy", "adaptive")), **told)  # type: ignore[arg-type]
    return Program(ident, f"model-{ident}", **options)  # type: ignore[arg-type]


def make_call(
    ident: int, rows: int = 1, *, program: int = 1, arrived: int = 0, deadline: int | None = None,
    klass: Klass = Klass.REALTIME, priority: int = 0, lengths: tuple[int, ...] = (),
) -> Call:  # fmt: skip
    """A call whose row i lies in slot 100 * ident + i."""
    made = [Row(100 * ident + i, lengths[i] if lengths else 0) for i in range(len(lengths) or rows)]
    return Call(ident, program, made, klass, priority, arrived, deadline)


class Tie(IntEnum):
    FINISHED = 0
    CANCEL = 1
    SUBMIT = 2
    TICK = 3
    WAKE = 4


@dataclass(frozen=True, slots=True)
class Arrival:
    """One call to come: admitted `at`, submitted `decode` later, cancelled `cancel` after that, if at all.

    `extend`: so long after that, its deadline becomes one so long after its admission, or none.
    """

    at: int
    program: int = 1
    lengths: tuple[int, ...] = (0,)
    klass: Klass = Klass.REALTIME
    priority: int = 0
    timeout: int | None = None
    cancel: int | None = None
    decode: int = 0
    steps: int = 1  # of each of its rows at a stage that repeats
    bad: frozenset[int] = frozenset()  # rows on which the model raises
    well: int = 0  # steps of a cell that those make before one fails
    extend: tuple[int, int | None] | None = None


Input = tuple[int, str, tuple[Any, ...]]  # a time, a method of the scheduler, and what it is told besides


@dataclass(frozen=True, slots=True)
class Trace:
    device: DeviceSpec
    programs: tuple[Program, ...]
    arrivals: tuple[Arrival, ...]
    oom_above: int | None = None  # units of a greater size run out of memory
    lose_unit: int | None = None  # this unit takes the device with it
    inputs: tuple[Input, ...] = ()  # those that are about no call
    seed: int | None = None  # of service times
    together: bool = False  # ends of units share the step of their time, too
    pairs: tuple[tuple[int, int, float], ...] = ()  # (program, program beside it, by how much the first is slowed)


class World:
    """Runs a trace to its end. Afterwards `book`, `units`, `left`, `refusals` and `entries` say what happened."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.entries: list[Entry] = []
        self.units: list[Unit] = []
        self.refusals: dict[int, Refusal] = {}
        self.left: dict[int, int] = {}  # when each call was done or dropped
        self.now = 0
        tables = [told[1] for _, name, told in trace.inputs if name == "control" and told[1] is not None]
        patient = any(one.beside is not None for one in tables)
        self.book = Book(trace.device, trace.programs, patient=patient, exact=trace.seed is None)
        self.scheduler = RecordingScheduler(trace.device, sink=self.entries.append)
        self._events: list[tuple[int, Tie, int, Callable[[], None]]] = []
        self._sequence = count()
        self._timer: int | None = None
        self._recalled: set[int] = set()
        self._continuing: set[int] = set()
        #: By worker: its units with the times of their steps, the one that runs first.
        self._queues: list[deque[tuple[Unit, list[int]]]] = [deque() for _ in trace.device.workers]
        self._random = None if trace.seed is None else random.Random(trace.seed)

    def run(self) -> World:
        self._plan()
        for _ in range(MAX_STEPS):
            if not self._events:
                self.book.check_over(self.scheduler)
                return self
            self._turn()
        raise AssertionError("the trace does not end")

    def how(self, call_id: int) -> str | None:
        """How a call left; a refused one has not come."""
        return "refused" if call_id in self.refusals else self.book.calls[call_id].left

    def _plan(self) -> None:
        for program in self.trace.programs:
            self.scheduler.add_program(program, 0)
        pairs = {(one, other): slower for one, other, slower in self.trace.pairs}
        self.book.pairs = pairs
        self.scheduler.pair(pairs, 0)
        for ident, arrival in enumerate(self.trace.arrivals):
            self._at(arrival.at, Tie.SUBMIT, partial(self._admit, ident, arrival))
        for at, name, told in self.trace.inputs:
            act = partial(getattr(self.scheduler, name), *told, at)
            self._at(at, Tie.TICK if name == "tick" else Tie.SUBMIT, act)

    def _turn(self) -> None:
        """One finished unit, or all other events of one time; then one step."""
        self.now, tie, _, act = heappop(self._events)
        act()
        alone = tie is Tie.FINISHED and not self.trace.together
        while not alone and self._events and self._events[0][0] == self.now:
            heappop(self._events)[3]()
        step = self.scheduler.step(self.now, hold=True)
        self._carry_out(step)
        if step.held:  # as the engine, when it has polled its sockets
            self._carry_out(self.scheduler.step(self.now))

    def _carry_out(self, step: Step) -> None:
        self.book.check(step, self.scheduler, self.now)
        self.left.update((call.id, self.now) for call in [*step.done, *(drop.call for drop in step.drop)])
        for unit in step.start:
            self._push(unit)
        self._recalled.update(unit.id for unit in step.recall)
        if step.wake_at is not None and step.wake_at != self._timer:
            self._at(step.wake_at, Tie.WAKE, lambda: None)
        self._timer = step.wake_at

    def _admit(self, ident: int, arrival: Arrival) -> None:
        deadline = None if arrival.timeout is None else self.now + arrival.timeout
        call = make_call(
            ident, program=arrival.program, arrived=self.now, deadline=deadline, klass=arrival.klass,
            priority=arrival.priority, lengths=arrival.lengths,
        )  # fmt: skip
        refusal = self.scheduler.admit(arrival.program, len(arrival.lengths), arrival.klass, deadline, self.now)
        if refusal is not None:
            self.refusals[ident] = refusal
            self.book.check_refusal(call, refusal, self.scheduler, self.now)
            return
        if arrival.decode:
            self._at(self.now + arrival.decode, Tie.SUBMIT, lambda: self._submit(call, arrival))
        else:
            self._submit(call, arrival)

    def _submit(self, call: Call, arrival: Arrival) -> None:
        self.book.submit(call, arrival.steps, arrival.bad, arrival.well)
        self.scheduler.submit(call, self.now)
        if arrival.cancel is not None:
            # what may have become of a late call (its program or device has gone) is heard before it is cancelled
            after = max(arrival.cancel, 1 if arrival.decode else 0)
            self._at(self.now + after, Tie.CANCEL, lambda: self._cancel(call.id))
        if arrival.extend is not None:
            after, timeout = max(arrival.extend[0], 1 if arrival.decode else 0), arrival.extend[1]
            deadline = None if timeout is None else call.arrived + timeout
            self._at(self.now + after, Tie.CANCEL, lambda: self.scheduler.extend(call.id, deadline, self.now))

    def _cancel(self, call_id: int) -> None:
        self.book.cancel(call_id)
        self.scheduler.cancel(call_id, self.now)

    def _push(self, unit: Unit) -> None:
        self.units.append(unit)
        assert (unit.course.steps == 1 and not unit.course.continue_without) or self.trace.device.multi_step
        self._continuing.update([unit.id] * unit.course.continue_without)
        slower = 1.0 if self._random is None else self._random.uniform(0.5, 3)
        mean = (unit.forecast.predicted or SERVICE_NS) // unit.course.steps
        times = (unit.course.steps > 1 and self.book.stage_times(unit, self.scheduler)) or [mean] * unit.course.steps
        queue = self._queues[unit.worker]
        queue.append((unit, [max(1, int(time * slower)) for time in times]))
        if len(queue) == 1:
            self._begin(*queue[0])

    def _begin(self, unit: Unit, times: list[int], steps: int = 0) -> None:
        """A worker begins a further step, or stage, of a unit of which it has made so many."""
        self.book.made[unit.id] = steps, self.now
        self._at(self.now + times[steps], Tie.FINISHED, lambda: self._next_step(unit, steps + 1, times))

    def _next_step(self, unit: Unit, steps: int, times: list[int]) -> None:
        """A worker has made so many steps, or stages, of a unit: it takes the next one unless it is told to end."""
        cell = self.book.programs[unit.program].stages[unit.stage].repeats
        ends = (
            steps == unit.course.steps
            or unit.id in self._recalled
            or (cell and (self.book.ended(unit, steps) or self.book.stops(unit, steps)))
        )
        if ends or self._fault(unit):
            told = not unit.course.continue_without or unit.id in self._recalled
            late = told and self._random is not None and self._random.random() < 0.2  # it hears of that too late
            self._finish(unit, times[:steps], continues=unit.id in self._continuing and (late or not told))
        else:
            if cell:
                self.scheduler.progressed(unit.id, steps, self.now)
            self._begin(unit, times, steps)

    def _finish(self, unit: Unit, took: list[int], *, continues: bool = False) -> None:
        """`continues`: if rows of it end and others do not, the worker goes on with these."""
        queue = self._queues[unit.worker]
        assert queue.popleft()[0].id == unit.id
        error, steps = self._fault(unit), len(took)
        cell = self.book.programs[unit.program].stages[unit.stage].repeats
        ended = self.book.ended(unit, steps) if cell and not error else ()
        continues = continues and error is None and 0 < len(ended) < len(unit.rows)
        self.book.finish(unit, error, steps, continues=continues)
        times = () if cell or steps == 1 else tuple(took)
        outcome = Outcome(unit.id, error, sum(took), ended, 1 if error else steps, times, continues)
        self.scheduler.finished(outcome, self.now)
        following = self.scheduler.units.get(unit.id)
        assert (following is not None) == continues
        if following is not None:
            self.book.units[following.id] = following
            queue.appendleft((following, [took[-1]] * following.course.steps))
        if queue:
            self._begin(*queue[0])

    def _fault(self, unit: Unit) -> Fault | None:
        if unit.id == self.trace.lose_unit:
            return Fault.DEVICE
        if self.trace.oom_above is not None and unit.size > self.trace.oom_above:
            return Fault.OOM
        return self.book.fault(unit)

    def _at(self, time: int, tie: Tie, act: Callable[[], None]) -> None:
        heappush(self._events, (time, tie, next(self._sequence), act))
