"""A device of streams on one thread, taken through its turns at random, and what must be true at each of them."""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from runtimes import FakeRuntime, Mark

from app.contract import Array, Model
from app.engine.device import Completion, DeviceOptions, Job
from app.engine.pool import Slots
from app.engine.streams.device import StreamDevice
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.step import Failed, Step
from app.scheduler.types import Fault, WorkerSpec


class WatchedSlots(StreamPool):
    """Fails where a slot is handed out, or its device row written, while anything still uses it."""

    copying: Counter[int]
    out: dict[int, Mark]  # per slot: the out-event of the last unit that read it
    before: deque[list[Mark]]  # the same for each copy on the in-stream

    def take(self, n: int) -> Slots:
        slots = super().take(n)
        for slot in slots:
            assert not self.copying[slot], "handed out before its in-event"
            assert slot not in self.out or self.out[slot].fired, "handed out before its unit's out-event"
        return slots

    def copy_in(self, runtime: Any, stream: Any, slots: Slots) -> None:
        self.copying.update(slots)
        self.before.append([self.out[slot] for slot in slots if slot in self.out])  # units of earlier rows
        super().copy_in(runtime, stream, slots)

    def _move(self, slots: Slots) -> None:
        assert all(mark.fired for mark in self.before.popleft()), "overwritten while a unit reads it"
        self.copying.subtract(slots)
        super()._move(slots)


class Steps(queue.SimpleQueue):
    """What a completer waits for; `latest` is the step that was launched last. Notes which of them reads a slot."""

    latest: Step | None = None

    def put(self, message: Any) -> None:
        if message is None or isinstance(message[1][0], Failed):
            super().put(message)
            return
        function, (step, ended) = message
        self.latest, mark = step, step.block.out_event.mark
        if step.lost is None and isinstance(step.executor.pool, WatchedSlots):
            step.executor.pool.out.update((slot, mark) for slot in step.slots)

        def told(step: Step, result: Any) -> None:
            assert mark.fired or step.lost is not None, "ended before its out-event"
            if self.latest is step:
                self.latest = None
            ended(step, result)

        super().put((function, (step, told)))


class Stepped(StreamDevice):
    """No threads: `turn` does one thing that one of them, or a stream, might do next."""

    def __init__(
        self,
        runtime: FakeRuntime,
        capacities: Sequence[int],
        options: DeviceOptions | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        specs = tuple(WorkerSpec(capacity) for capacity in capacities)
        super().__init__(runtime, specs, options, clock=clock or runtime.clock)
        self.fake = runtime

    def _spawn(self) -> None:
        for worker in self.workers:
            worker.completer.messages = Steps()

    def result(self, done: Future[Any]) -> Any:
        while not done.done():
            assert self.turn(), "nothing is left to do, and nobody has answered"
        return done.result()

    def watched_executor(self, model: Model, slots: int) -> StreamExecutor:
        executor = self.open(model, slots)
        assert isinstance(executor, StreamExecutor)
        executor.pool.__class__ = WatchedSlots
        executor.pool.copying, executor.pool.out, executor.pool.before = Counter(), {}, deque()
        return executor

    def turn(self) -> bool:
        """One random thing happens; False if nothing can."""
        threads = [*self.launchers, *self.waiters]
        choices: list[Callable[[], object]] = [one.next for one in threads if not one.messages.empty()]
        if any(stream.ready for stream in self.fake.streams) and not self.fake.broken:
            choices += [self.fake.step] * 2
        if choices:
            with torch.inference_mode():
                self.fake.random.choice(choices)()
        return bool(choices)

    def launch(self) -> None:
        """The launchers do what they have."""
        while waiting := [launcher for launcher in self.launchers if not launcher.messages.empty()]:
            waiting[0].next()

    def complete_next(self, index: int) -> None:
        """A worker's completer waits for one step."""
        self.workers[index].completer.next()


@dataclass(eq=False)
class Pushed:
    """A unit handed over: its slots, what they held, and what came of it."""

    worker: int
    slots: list[int]
    values: list[float]
    reports: int = 0
    fault: Fault | None = None
    answer: Array | None = None
    expected: Array | None = None


@dataclass(eq=False)
class World:
    """Calls that come, units cut from them in any order, callers who go away: a server, at random.

    `rows` makes the input row of a number, `expected` the output row.
    """

    device: Stepped
    executor: StreamExecutor
    rows: Callable[[float], Array]
    expected: Callable[[float], Array]
    bad: dict[float, Fault] = field(default_factory=dict)
    waiting: list[tuple[int, float]] = field(default_factory=list)  # slot and number
    units: list[Pushed] = field(default_factory=list)
    held: list[Pushed] = field(default_factory=list)  # answers that somebody still reads
    flying: Counter[int] = field(default_factory=Counter)
    last: float = 100.0
    lost: bool = False  # somebody has been told so: no more calls are taken

    def __post_init__(self) -> None:
        self.random = self.device.fake.random
        self.device.start(self.finished)

    @property
    def pool(self) -> StreamPool:
        return self.executor.pool

    def arrive(self) -> None:
        n = self.random.randint(1, 3)
        if self.lost:
            return
        try:
            slots = self.pool.take(n)
        except MemoryError:
            return
        for slot in slots:
            self.last += 1
            row = self.rows(self.last)
            lengths = dict.fromkeys(self.executor.axes, row.shape[0])
            self.pool.set_lengths([slot], lengths)
            self.pool.write([slot], 0, row[None], lengths)
            self.waiting.append((slot, self.last))
        self.device.arrive(self.executor, slots)

    def push(self) -> None:
        worker = self.random.randrange(len(self.device.workers))
        spec = self.device.spec
        if self.flying[worker] == spec.push_depth or not self.waiting:
            return
        n = self.random.randint(1, min(spec.workers[worker].capacity, len(self.waiting)))
        rows = self.waiting[:n] if self.random.random() < 0.5 else self.random.sample(self.waiting, n)
        self.waiting = [row for row in self.waiting if row not in rows]
        size = self.random.randint(n, spec.workers[worker].capacity)
        unit = Pushed(worker, [slot for slot, _ in rows], [number for _, number in rows])
        self.units.append(unit)
        self.flying[worker] += 1
        self.device.push(worker, Job(len(self.units) - 1, self.executor, unit.slots, size))

    def leave(self) -> None:
        """Somebody goes who has not been served."""
        if self.waiting:
            slot, _ = self.waiting.pop(self.random.randrange(len(self.waiting)))
            self.pool.give_back([slot])

    def read(self) -> None:
        """An answer has been read to its end."""
        if self.held:
            self.check_answer(self.held.pop(self.random.randrange(len(self.held))))

    def check_answer(self, unit: Pushed) -> None:
        assert unit.answer is not None
        assert np.array_equal(unit.answer, unit.expected), (unit.values, unit.answer)
        unit.answer = None

    def finished(self, completion: Completion) -> None:
        unit = self.units[completion.outcome.unit_id]
        unit.reports += 1
        assert unit.reports == 1, "reported twice"
        assert completion.worker == unit.worker
        self.flying[unit.worker] -= 1
        unit.fault = completion.outcome.error
        faults = {self.bad[value] for value in unit.values if value in self.bad}
        if unit.fault is None:
            assert not faults
            assert completion.ran is not None
            unit.answer = completion.ran.outputs[0]
            unit.expected = np.stack([self.expected(value) for value in unit.values])
            assert np.array_equal(unit.answer, unit.expected), (unit.values, unit.answer)
            self.held.append(unit)
        else:
            self.lost = unit.fault is Fault.DEVICE
            assert self.device.fake.broken if self.lost else unit.fault in faults
        self.pool.give_back(unit.slots)

    def act(self) -> None:
        """Something happens: outside, or in the device."""
        kinds = [self.arrive, self.push, self.leave, self.read]
        if self.random.random() < 0.3:
            self.random.choices(kinds, [4, 6, 1, 2])[0]()
        else:
            self.device.turn()

    def settle(self) -> None:
        """Everything ends: no more calls, all units are heard of, all slots are free."""
        while self.waiting or any(self.flying.values()):
            self.push()
            self.device.turn()
        while self.device.turn():
            pass
        while self.held:
            self.read()
        assert all(unit.reports == 1 for unit in self.units)
        if not self.device.fake.broken:
            assert self.pool.used == 0
