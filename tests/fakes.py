"""Time and a device without threads: what lets the whole engine run in a test, each time in the same order.

On a VirtualLoop nothing sleeps: when nothing is ready, time jumps to the next timer. Callables handed to an executor
run at once. An exception that only reached the loop's handler fails the test, and so does a wait that has no end.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Executor as Threads
from dataclasses import dataclass, replace
from typing import Any

import torch

from app.contract import Model
from app.engine.cpu.executor import CpuExecutor
from app.engine.device import Completion, Report
from app.engine.executor import WHOLE, Executor, Job, Ran, Stop
from app.engine.pool import Pool, Slots
from app.models.base import one_line
from app.scheduler.types import DeviceSpec, Fault, Outcome, WorkerSpec

MS = 1_000_000  # nanoseconds
START_NS = 1_000_000_000_000  # a clock that starts at 0 hides what forgets to subtract
HORIZON_NS = 600_000_000_000  # no test lasts so long: only the rate monitor still ticks


class Stalled(AssertionError):
    """A test waits for what will never happen."""


class _JumpingSelector(selectors.DefaultSelector):
    """Never blocks: where a loop would wait for its next timer, time passes instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_NS
        self._horizon = START_NS + HORIZON_NS

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise Stalled("nothing is ready and no timer is set")
        self.now += max(0, round(timeout * 1e9))
        if self.now > self._horizon:
            self._horizon += HORIZON_NS  # what is cancelled because of this may yet clean up
            raise Stalled(f"nothing but timers for {HORIZON_NS / 1e9:.0f} virtual seconds")
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on virtual time. `failures` holds what nobody handled."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self.failures: list[BaseException | str] = []
        self.set_exception_handler(self._unhandled)

    @property
    def now(self) -> int:
        """Virtual nanoseconds."""
        return self._jumping.now

    def time(self) -> float:
        return self.now / 1e9

    def call_at(self, when: float, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        """As any loop's, for a whole nanosecond: two ways to compute one time must not make two times."""
        return super().call_at(round(when * 1e9) / 1e9, callback, *args, **kwargs)

    def run_in_executor(  # type: ignore[override]
        self, executor: Threads | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as exc:
            future.set_exception(exc)
        return future

    async def turn(self, n: int = 1) -> None:
        """Let the loop turn `n` times at this time."""
        for _ in range(n):
            turned = self.create_future()
            self.call_soon(_set, turned)
            await turned

    async def until(self, at: int) -> None:
        """Let everything happen that happens before `at`."""
        reached = self.create_future()
        self.call_later(max(0, at - self.now) / 1e9, _set, reached)
        await reached

    async def passes(self, ns: int) -> None:
        """Let `ns` nanoseconds pass."""
        await self.until(self.now + ns)

    def _unhandled(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.failures.append(context.get("exception") or str(context["message"]))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():  # its waiter was cancelled
        future.set_result(None)


def virtual_loop() -> VirtualLoop:
    """The loop that runs now."""
    return asyncio.get_running_loop()


def virtual(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test on a VirtualLoop of its own. Takes fixtures, parameters and Hypothesis's arguments as usual."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            try:
                runner.run(test(*args, **kwargs))  # type: ignore[arg-type]
            except BaseException as exc:
                for failure in loop.failures:
                    exc.add_note(f"on the loop: {failure!r}")
                raise
        for failure in loop.failures:
            if isinstance(failure, BaseException):
                raise failure
        assert loop.failures == []

    return run


class VirtualClock:
    """Monotonic nanoseconds of a VirtualLoop. With `rate` below 1 the loop's timers fire before their time on it."""

    def __init__(self, loop: VirtualLoop, rate: float = 1.0) -> None:
        self._loop = loop
        self._rate = rate

    def __call__(self) -> int:
        if self._rate == 1.0:
            return self._loop.now
        return START_NS + int((self._loop.now - START_NS) * self._rate)


@dataclass(frozen=True, slots=True)
class Fate:
    """How a unit goes. `ns`: its time, by default the device's for its size; None: until `FakeDevice.release`."""

    ns: int | None = -1
    fault: Fault | None = None


HANGS = Fate(None)


@dataclass(slots=True, eq=False)
class Pushed:
    """A unit handed to the device, and when."""

    worker: int
    job: Job
    stop: Stop
    at: int
    fate: Fate = Fate()
    ended: int | None = None
    steps: int = 1  # stages that its worker has run of it, or runs

    @property
    def rows(self) -> int:
        return len(self.job.slots)


class WatchedPool(Pool):
    """A Pool that knows which slots units read, and fails where one of them is freed or handed out."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.reading: Counter[int] = Counter()

    def take(self, n: int) -> Slots:
        slots = super().take(n)
        assert not self._read(slots), "handed out while a unit reads it"
        return slots

    def give_back(self, slots: Slots) -> None:
        assert not self._read(slots), "freed while a unit reads it"
        super().give_back(slots)

    def _read(self, slots: Slots) -> list[int]:
        return [slot for slot in slots if self.reading[slot]]


class TimedExecutor(CpuExecutor):
    """A CpuExecutor whose batches take the time they are said to take: a tenth for inputs, a tenth for outputs. Each
    stage of a model in stages takes that time."""

    def __init__(self, model: Model, pool: Pool, batch_ns: Callable[[int], int]) -> None:
        super().__init__(model, pool)
        self.batch_ns = batch_ns

    def run(self, job: Job, stop: Stop) -> Iterator[Ran]:
        for ran in super().run(job, stop):
            yield ran if job.stage == WHOLE else self._by_stage(self._timed(ran, job.size), job.size)

    def whole(self, slots: Slots, size: int) -> Ran:
        ran = super().whole(slots, size)
        if not self.model.stages:
            return self._timed(ran, size)
        times = (self.batch_ns(size),) * len(self.model.stages)
        return Ran(ran.outputs, 0, sum(times), 0, stages_ns=times)

    def _timed(self, ran: Ran, size: int) -> Ran:
        ns = self.batch_ns(size)
        return replace(ran, input_ns=ns // 10, infer_ns=ns - 2 * (ns // 10), output_ns=ns // 10)

    def _by_stage(self, ran: Ran, size: int) -> Ran:
        times = [self.batch_ns(size)] * ran.steps
        times[0] -= ran.input_ns
        times[-1] -= ran.output_ns
        return replace(ran, infer_ns=sum(times), stages_ns=tuple(times))


def affine(size: int) -> int:
    """1 ms and 0.1 ms a row."""
    return MS + size * MS // 10


class FakeDevice:
    """Implements engine.device.Device on a VirtualLoop: a unit ends at its time, or when told, as its Fate says.

    `fate` is asked for each unit as it is pushed. Units of one worker run one after another; one that is handed to an
    idle worker takes `handover_ns` more, until its end is reported. The slots are read as late
    as may be, when the unit ends: a slot that was freed too early shows in an answer. A model that raises makes its
    unit fail as a worker would report it.
    """

    name = "fake"
    staged = False
    threads = 1

    def __init__(
        self, loop: VirtualLoop, *capacities: int, fate: Callable[[Pushed], Fate] = lambda pushed: Fate(),
        batch_ns: Callable[[int], int] = affine, handover_ns: int = 0, **options: int,
    ) -> None:  # fmt: skip
        options.setdefault("max_running", len(capacities))
        self.spec = DeviceSpec(tuple(WorkerSpec(capacity) for capacity in capacities), **options)
        self.fate = fate
        self.batch_ns = batch_ns
        self.handover_ns = handover_ns
        self.pushed: list[Pushed] = []
        self.report: Callable[[Completion], None] | None = None
        self.closed = False
        self.freed: list[Executor] = []
        self._loop = loop
        self._queues: list[deque[Pushed]] = [deque() for _ in capacities]
        self._lost: dict[int, str] = {}

    def start(self, report: Report) -> None:
        assert self.report is None, "started twice"
        self.report = report

    def open(self, model: Model, slots: int) -> Executor:
        return TimedExecutor(model, WatchedPool(model.info.client_inputs, slots), self.batch_ns)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        with torch.inference_mode():
            return executor.trial(slots, size)

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """As a CPU: nothing."""

    def free(self, executor: Executor) -> None:
        self.freed.append(executor)

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        pushed = Pushed(worker, job, stop, self._loop.now)
        pushed.fate = self.fate(pushed)
        self.pushed.append(pushed)
        if worker in self._lost:
            return  # a dead thread's queue takes everything and gives nothing back
        queue = self._queues[worker]
        assert not self.closed
        if job.unit_id >= 0:  # those of the scheduler, beside one that is measured
            known = sum(one.job.unit_id >= 0 for one in queue)
            assert known < self.spec.push_depth, "more units than the worker's depth"
        assert 0 < len(job.slots) <= job.size <= self.spec.workers[worker].capacity
        reading = job.executor.pool.reading
        assert not any(reading[slot] for slot in job.slots), "a slot in two units"
        reading.update(job.slots)
        queue.append(pushed)
        if len(queue) == 1:
            self._begin(queue, self.handover_ns)

    def wait_until_begun(self) -> None:
        """Units begin as they are pushed."""

    def release(self, worker: int = 0, fault: Fault | None = None) -> None:
        """The unit that the worker runs now ends, whatever was said of it."""
        pushed = self._queues[worker][0]
        pushed.fate = Fate(0, fault)
        self._end(pushed)

    def die(self, worker: int = 0) -> None:
        """The worker ends without a word."""
        self._lost[worker] = f"worker {worker} has died"

    def dead(self) -> str | None:
        return next(iter(self._lost.values()), None)

    def close(self, timeout_s: float) -> bool:
        self.closed = True
        return not any(queue and queue[0].fate.ns is None for queue in self._queues)

    def _begin(self, queue: deque[Pushed], handover_ns: int = 0) -> None:
        pushed = queue[0]
        ns = self.batch_ns(pushed.job.size) if pushed.fate.ns == -1 else pushed.fate.ns
        if ns is not None:
            self._loop.call_later((ns + handover_ns) / 1e9, self._at_boundary, pushed, ns)

    def _at_boundary(self, pushed: Pushed, ns: int) -> None:
        """A stage of the unit has ended: its worker takes the next one by itself, unless it was recalled."""
        if pushed.steps < pushed.job.steps and not pushed.stop.now and pushed.fate.fault is None:
            pushed.steps += 1
            self._loop.call_later(ns / 1e9, self._at_boundary, pushed, ns)
        else:
            self._end(pushed)

    def _end(self, pushed: Pushed) -> None:
        if pushed.ended is not None or pushed.worker in self._lost:
            return
        pushed.ended = self._loop.now
        completion = self._complete(pushed)
        queue = self._queues[pushed.worker]
        queue.popleft()
        if completion.outcome.error is Fault.DEVICE:
            self.die(pushed.worker)
            queue.clear()
        pushed.job.executor.pool.reading.subtract(pushed.job.slots)
        if queue:
            self._begin(queue)
        self.report(completion)

    def _complete(self, pushed: Pushed) -> Completion:
        job = pushed.job
        fault, message, ran = pushed.fate.fault, "as told", None
        cause: BaseException | None = None
        if fault is None:
            try:
                with torch.inference_mode():
                    (ran,) = job.executor.run(job._replace(steps=pushed.steps), Stop())
            except MemoryError as exc:
                fault, message, cause = Fault.OOM, one_line(exc), exc
            except (Exception, SystemExit) as exc:
                fault, message, cause = Fault.MODEL, one_line(exc), exc
            except GeneratorExit as exc:
                fault, message, cause = Fault.DEVICE, one_line(exc), exc
        if ran is None:
            outcome = Outcome(job.unit_id, fault, self._loop.now - pushed.at, steps=pushed.steps)
        else:  # a stage behind the first may have failed
            times = tuple(map(sum, ran.stage_parts)) if ran.steps > 1 else ()
            outcome = Outcome(job.unit_id, None, ran.busy_ns, steps=ran.steps, times=times)
        return Completion(outcome, ran, message, pushed.worker, cause)
