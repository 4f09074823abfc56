"""A device of streams: copies, batches and results that overlap, kept in order by events (Ebird, sections V and VI).

Threads
    The event loop announces rows (`arrive`) and units (`push`): both are messages to a launcher (`threads.py`). One
    launcher copies rows as they arrive. Each worker has a launcher, which enqueues its units, and before them copies
    that the other has not come to; and a completer, which blocks on the out-event of the oldest step, has the launcher
    launch the next one of its unit (`unit.py`), and reports the unit when its last step has ended. One
    completer for all workers would make a result wait for another stream's; a host function on the stream would need
    the lock on a thread of the driver, and hold up the stream until it has it. Blocking on an event needs neither the
    lock nor a core, and nothing polls. Models are loaded on the caller's thread, beside the launchers (`loading.py`).
Streams
    One in-stream for all rows that arrive; per worker a stream to compute on and an out-stream for its results.
Bounds
    The queues hold at most a message for each model, `push_depth` units for each worker beside one that is measured,
    and the steps that were planned of one of them.
Failure
    A model's error is its unit's. Any error of the runtime ends the device: what is in flight and all that comes later
    is reported as lost, each unit once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

from app.contract import Model
from app.engine.device import (
    NO_BOUND,
    Completion,
    Device,
    DeviceOptions,
    Executor,
    Job,
    Ran,
    Report,
    failed,
    push_depth,
)
from app.engine.pool import Slots
from app.engine.streams.captures import Streams
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.device_pool import Copies, StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.loading import Loader
from app.engine.streams.runtime import Health
from app.engine.streams.threads import DeviceThread
from app.engine.streams.trying import Trying
from app.engine.streams.unit import UnitRun
from app.engine.streams.worker import StreamWorker
from app.errors import ConfigError
from app.models.placement import movable
from app.scheduler.types import DeviceSpec, Fault, WorkerSpec

log = logging.getLogger("starling.engine")

NO_GRAPHS = ", no graphs"  # in the name of a device that captures none: its batches take other times

_PUSH_AHEAD_NS = 300_000  # about what a launch and a turn of the event loop cost


class StreamDevice:
    """Implements engine.device.Device over a runtime. See the module's text for who does what.

    `host` runs models that cannot be moved to this device; it has as many workers. Without one they are refused.
    """

    staged = True
    threads = 1

    def __init__(
        self,
        runtime: CudaRuntime,
        workers: tuple[WorkerSpec, ...],
        options: DeviceOptions | None = None,
        host: Device | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        options = options or DeviceOptions()
        self.name = runtime.name if options.graphs else runtime.name + NO_GRAPHS
        ahead = _PUSH_AHEAD_NS if options.push_ahead_ns is None else options.push_ahead_ns
        depth = push_depth(ahead)
        self.spec = DeviceSpec(workers, len(workers), options.max_alive or NO_BOUND, depth, ahead, multi_step=True)
        self.runtime = runtime
        self._clock = clock
        self.health = Health(self.name)
        self.copies = Copies()
        self._graphs = options.graphs
        self._spare_host = host
        self._host: Device | None = None  # when it has been started
        self._report: Report
        self._closed = False
        self._closing = threading.Lock()  # so that nothing is sent behind the end

        runtime.attach()
        streams = self._streams = Streams(runtime.stream)
        self.in_stream = streams.take(0)
        self.copier = self._thread("copier")
        self.workers = [
            StreamWorker(index, spec, runtime, streams, self.copies, self.health, clock)
            for index, spec in enumerate(workers)
        ]
        #: Waits, for an unloaded model, for all units that were launched.
        self.leaving = self._thread("unloading")
        trying = Trying(runtime, streams.take(0), self.health, clock)
        placement = replace(options.placement, device=runtime.device)
        self._loader = Loader(trying, streams, self.workers, placement, depth, self._run)

    @property
    def uuid(self) -> str:
        """The hardware's own name for itself, as NVML knows it."""
        return self.runtime.uuid

    @property
    def launchers(self) -> list[DeviceThread]:
        return [self.copier, *(worker.launcher for worker in self.workers)]

    @property
    def waiters(self) -> list[DeviceThread]:
        return [self.leaving, *(worker.completer for worker in self.workers)]

    def _thread(self, name: str) -> DeviceThread:
        return DeviceThread(name, self.runtime, self.health.lose)

    # what the engine asks

    def start(self, report: Report) -> None:
        self._report = report
        self._spawn()

    def open(self, model: Model, slots: int) -> Executor:
        """Move the model's weights and allocate its memory. Blocks: not for the loop of a server that serves.

        One that cannot be moved runs on the CPU, on a thread of its worker. Raises ConfigError.
        """
        self.runtime.attach()
        if not movable(model):
            log.warning("model %s: no nn.Module with tensors alone: it runs on the CPU", model.info.name)
            return self._open_on_host(model, slots)
        memory = self.runtime.pinned, self.runtime.empty
        inputs = model.info.client_inputs
        make_pool = partial(StreamPool, inputs, slots, self.copies, memory, self.runtime.fired)
        return self._loader.open(model, slots, make_pool, graphs=self._graphs)

    def _open_on_host(self, model: Model, slots: int) -> Executor:
        if self._spare_host is None:
            raise ConfigError(
                f"model {model.info.name!r}: cannot be moved to {self.name}, and there is no other device"
            )
        if self._host is None:  # most servers never need its threads
            self._host = self._spare_host
            self._host.start(self._report)
        return self._host.open(model, slots)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        if isinstance(executor, StreamExecutor):
            return self._loader.trial(executor, slots, size)
        assert self._host is not None  # it placed this model
        return self._host.trial(executor, slots, size)

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written: let their copy begin. Returns at once; any thread."""
        if isinstance(executor, StreamExecutor) and executor.pool.arrive(slots):
            self._send(self.copier, self._copy, executor.pool)

    def push(self, worker: int, job: Job) -> None:
        """Hand over a unit. Returns at once. Rows that nobody announced are copied first."""
        if isinstance(job.executor, StreamExecutor):
            self.submit(self.workers[worker], job, self._report)
        else:
            assert self._host is not None  # it placed this model
            self._host.push(worker, job)

    def let_begin(self) -> None:
        """For models that run on the CPU. Others wait for a launcher, which is handed units ahead of time."""
        if self._host is not None:
            self._host.let_begin()

    def free(self, executor: Executor) -> None:
        """The model has been unloaded. What it holds goes when all that was enqueued until now is over.

        Units that were pushed before run and are reported; a unit that is pushed later fails.
        """
        if isinstance(executor, StreamExecutor):
            for worker in self.workers:
                self._send(worker.launcher, self._unload, executor, worker)

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        if self.health.lost is not None:
            return self.health.lost
        if self._host is not None and (gone := self._host.dead()) is not None:
            return gone
        threads = [one.thread for one in (*self.launchers, *self.waiters) if one.thread.ident is not None]  # have begun
        return next((f"{thread.name} has died" for thread in threads if not thread.is_alive()), None)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what they have; False if one hangs."""
        end = time.monotonic() + timeout_s
        with self._closing:
            self._closed = True
            for launcher in self.launchers:
                launcher.end()
        ended = self._host is None or self._host.close(timeout_s)
        if _all_end(self.launchers, end):
            for waiter in self.waiters:
                waiter.end()
        return _all_end(self.waiters, end) and ended

    # messages

    def _send(self, launcher: DeviceThread, function: Callable[..., None], *args: Any) -> bool:
        """Have a launcher call this; False if it takes no more."""
        with self._closing:
            if not self._closed:
                launcher.send(function, *args)
            return not self._closed

    def submit(self, worker: StreamWorker, job: Job, report: Report, *, graphs: bool = True) -> None:
        """Have a worker's launcher launch a unit; `report` is called with what it gave. `graphs`: see `Step`."""
        executor = job.executor
        assert isinstance(executor, StreamExecutor)
        new = [slot for slot in job.slots if not executor.pool.numbers[slot]]
        if new:
            self.arrive(executor, new)
        unit = UnitRun(job, worker, report, self._launch_soon, self.spec.push_ahead_ns, graphs=graphs)
        if not self._launch_soon(unit):
            completion = failed(job.unit_id, Fault.DEVICE, RuntimeError("the device is closed"))
            completion.worker = worker.index
            report(completion)

    def _launch_soon(self, unit: UnitRun) -> bool:
        return self._send(unit.worker.launcher, self._launch, unit)

    def _run(self, worker: StreamWorker, job: Job, graphs: bool) -> Completion:
        """Have a worker run a job, and wait for it."""
        done: Future[Completion] = Future()
        self.submit(worker, job, done.set_result, graphs=graphs)
        return self.result(done)

    def result(self, done: Future[Completion]) -> Completion:
        """Wait for what a completer will bring."""
        return done.result()

    # on the launchers

    def _copy(self, pool: StreamPool) -> None:
        """Enqueue the copies of rows that have arrived."""
        if self.health.lost is None:
            try:
                pool.copy_arrived(self.runtime, self.in_stream)
            except BaseException as exc:
                self.health.lose(exc)

    def _launch(self, unit: UnitRun) -> None:
        self._copy(unit.executor.pool)
        unit.launch(self.runtime, self.health, self._clock)

    def _unload(self, executor: StreamExecutor, worker: StreamWorker) -> None:
        """A worker has been given all units of a model. Until the streams have come this far, a graph may be running,
        and rows may be on their way into memory that the next model would be given.
        """
        memory = executor.memories[worker.index]
        if memory.unloaded:
            return
        memory.unloaded = True
        self._copy(executor.pool)
        if self.health.lost is None:
            events = [self._recorded(stream) for stream in (self.in_stream, worker.stream, worker.out)]
            self.leaving.send(self._when, events, partial(self._release, executor, worker))

    def _recorded(self, stream: Any) -> Any:
        event = self.runtime.event()
        self.runtime.record(event, stream)
        return event

    # on the thread that waits for streams

    def _when(self, events: Sequence[Any], then: Callable[[], None]) -> None:
        """Call `then` when the events have fired; never, if the device fails."""
        for event in events:
            self.runtime.synchronize(event)
        then()

    def _release(self, executor: StreamExecutor, worker: StreamWorker) -> None:
        memory = executor.memories[worker.index]
        graphs, memory.graphs = memory.graphs, None
        if graphs is not None:
            graphs.clear()  # before the stream is anybody else's
            self._streams.give_back(worker.spec.priority, graphs.stream)

    # threads

    def _spawn(self) -> None:
        for one in (*self.launchers, *self.waiters):
            one.thread.start()


def _all_end(threads: Sequence[DeviceThread], end: float) -> bool:
    """Wait for the threads until this time, by the monotonic clock; whether all have ended."""
    for one in threads:
        if one.thread.ident is not None:
            one.thread.join(max(0.0, end - time.monotonic()))
    return not any(one.thread.is_alive() for one in threads)
