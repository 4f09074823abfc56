"""Devices on one thread, taken through their turns at random, and what must be true at each of them."""

from __future__ import annotations

import queue
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import torch
from runtimes import FakeRuntime, FakeStream, Mark

from app.contract import Model
from app.engine.cpu.device import CpuDevice
from app.engine.device import Completion, Device, DeviceOptions, Report
from app.engine.executor import Executor, Job, Ran, Stop
from app.engine.pool import Slots
from app.engine.profiling.warmup import run_rows
from app.engine.streams.device import StreamDevice
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.launch import Launch
from app.engine.streams.threads import StreamWorker
from app.models.checks.samples import example_row
from app.scheduler.types import WorkerSpec


class SteppedCpu(CpuDevice):
    """A CPU whose workers are no threads: `turn` has a random one run its oldest unit to its next report."""

    def __init__(self, runtime: FakeRuntime, capacities: Sequence[int]) -> None:
        super().__init__(tuple(capacities), 1, len(capacities))
        self.fake = runtime
        self._queues: list[deque[tuple[Job, Iterator[Ran]]]] = [deque() for _ in capacities]

    def start(self, report: Report) -> None:
        self._report = report

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        self._queues[worker].append((job, job.executor.run(job, stop)))

    def dead(self) -> str | None:
        return None

    def turn(self) -> bool:
        busy = [worker for worker, jobs in enumerate(self._queues) if jobs]
        if busy:
            worker = self.fake.random.choice(busy)
            job, runs = self._queues[worker][0]
            with torch.inference_mode():
                completion = job.executor.report_next(job, runs)
            completion.worker = worker
            if not completion.outcome.continues:
                self._queues[worker].popleft()
            self._report(completion)
        return bool(busy)

    def watched(self, model: Model, slots: int) -> Executor:
        return self.open(model, slots)


class WatchedSlots(StreamPool):
    """Fails where a slot is handed out, or its device row written, while anything still uses it."""

    copying: Counter[int]
    out: dict[int, Mark]  # per slot: the out-event of the last unit that read it

    def take(self, n: int) -> Slots:
        slots = super().take(n)
        for slot in slots:
            assert not self.copying[slot], "handed out before its in-event"
            assert slot not in self.out or self.out[slot].fired, "handed out before its unit's out-event"
        return slots

    def _enqueue(self, slots: Slots, stream: FakeStream) -> None:
        self.copying.update(slots)
        before = [self.out[slot] for slot in slots if slot in self.out]  # units of earlier rows

        def move() -> None:
            assert all(mark.fired for mark in before), "overwritten while a unit reads it"
            self.copying.subtract(slots)
            self.move(slots)

        self._in_stream.runtime.enqueue(stream, move)


class Steps(queue.SimpleQueue):
    """What a completer waits for; `latest` is the step that was launched last. Notes which of them reads a slot."""

    latest: Launch | None = None

    def put(self, message: Any) -> None:
        step = None if message is None else message[1][0]
        if step is None or not step.launched:
            super().put(message)
            return
        function, _ = message
        self.latest, mark = step, step.out_event.mark
        if isinstance(step.executor.pool, WatchedSlots):
            step.executor.pool.out.update((slot, mark) for slot in step.slots)

        def completed() -> None:
            function(step)
            assert mark.fired or step.worker.health.lost is not None, "ended before its out-event"
            if self.latest is step:
                self.latest = None

        super().put((completed, ()))


class SteppedStreams(StreamDevice):
    """Streams without threads: `turn` does one thing that a thread of the device, or a stream, might do next."""

    def __init__(self, runtime: FakeRuntime, capacities: Sequence[int], options: DeviceOptions | None = None) -> None:
        specs = tuple(WorkerSpec(capacity) for capacity in capacities)
        super().__init__(runtime, specs, options)
        self.fake = runtime

    def start(self, report: Report) -> None:
        self._report = report
        for worker in self.workers:
            worker.completer.messages = Steps()

    def _run(self, worker: StreamWorker, job: Job) -> Completion:
        done: Future[Completion] = Future()
        self._submit(worker, job, Stop(), done.set_result)
        while not done.done():
            assert self.turn(), "nothing is left to do, and nobody has answered"
        return done.result()

    def watched(self, model: Model, slots: int) -> StreamExecutor:
        executor = self.open(model, slots)
        executor.pool.__class__ = WatchedSlots
        executor.pool.copying, executor.pool.out = Counter(), {}
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


def try_batch(device: Device, executor: Executor, size: int, lengths: Mapping[str, int]) -> None:
    """Run a batch of plain rows of these lengths."""
    run_rows(device, executor, [example_row(executor.model.info.client_inputs, lengths)] * size, size)
