"""A device of streams: copies, batches and results that overlap, kept in order by events (Ebird, sections V and VI).

Threads
    The event loop announces rows (`arrive`) and units (`push`): both put messages into one queue. One launcher takes
    the messages in order and enqueues the work on all streams, but for models that block their thread: those have
    launchers of their own. Models are loaded on the caller's thread, beside the launcher (`loading.py`). Each worker
    has a completer, which blocks on the out-event of its oldest step, has the launcher launch the next one of its unit
    (`unit.py`), and reports the unit when its last step has ended. One completer for all workers would make a result
    wait for another stream's; a host function on the stream would need the lock on a thread of the driver, and hold up
    the stream until it has it. Blocking on an event needs neither the lock nor a core, and nothing polls.
Streams
    One in-stream for all rows that arrive; per worker a stream to compute on and an out-stream for its results.
Bounds
    The queue holds at most a message for each model and each row given back, `push_depth` units for each worker, and
    the steps that were planned of one of them.
Failure
    A model's error is its unit's. Any error of the runtime ends the device: what is in flight and all that comes later
    is reported as lost, each unit once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from app.contract import Array, Model
from app.engine.device import (
    NO_BOUND,
    WHOLE,
    Completion,
    Device,
    DeviceOptions,
    Executor,
    Freed,
    Job,
    Ran,
    Report,
    Transfer,
    failed,
)
from app.engine.pool import Pool, Slots
from app.engine.streams.captures import Streams
from app.engine.streams.device_pool import Copies, StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.launcher import Launchers
from app.engine.streams.launches import Callbacks, Launches
from app.engine.streams.loading import Loader
from app.engine.streams.runtime import Health, Runtime
from app.engine.streams.unit import UnitRun, WholeRun
from app.engine.streams.worker import Completer, EventWatcher, StreamWorker
from app.errors import ConfigError
from app.models.placement import movable
from app.scheduler.types import DeviceSpec, Fault, WorkerSpec

log = logging.getLogger("starling.engine")

NO_GRAPHS = ", no graphs"  # in the name of a device that captures none: its batches take other times

_PUSH_DEPTH = 2  # a worker finds its next unit on its stream when one ends; more would only delay who comes later
_PUSH_AHEAD_NS = 300_000  # about what a launch and a turn of the event loop cost


class StreamDevice:
    """Implements devices.base.Device over a Runtime. See the module's text for who does what.

    `host` runs models that cannot be moved to this device; it has as many workers. Without one they are refused.
    """

    staged = True
    threads = 1

    def __init__(
        self,
        runtime: Runtime,
        workers: tuple[WorkerSpec, ...],
        options: DeviceOptions | None = None,
        host: Device | None = None,
        clock: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        options = options or DeviceOptions()
        self.name = runtime.name if options.graphs else runtime.name + NO_GRAPHS
        alive, depth = options.max_alive or NO_BOUND, options.push_depth or _PUSH_DEPTH
        ahead = _PUSH_AHEAD_NS if options.push_ahead_ns is None else options.push_ahead_ns
        self.spec = DeviceSpec(
            workers,
            len(workers),
            alive,
            depth,
            ahead,
            multi_step=True,
            withdraws=depth > 1,
        )
        self.runtime = runtime
        self._graphs = options.graphs
        self.clock = clock
        self.copies = Copies()
        self.health = Health(self.name)
        self.launchers = Launchers(runtime, self._start, self.health.lose, self._launchers_ended)
        #: Of slots whose copies are not over, and of unloaded models, which wait for all units that were launched.
        self.watcher = EventWatcher("event watcher", runtime, self.health.lose)
        self.leaving = EventWatcher("unloading", runtime, self.health.lose)
        self.workers: list[StreamWorker] = []
        self.completers: list[Completer] = []
        self._host = host
        self._host_started = False
        self._threads: list[threading.Thread] = []
        self._streams = Streams(runtime.stream)
        self._placement = replace(options.placement, device=runtime.device)
        self.launches: Launches
        self._loader: Loader
        self._closed = False

    @property
    def uuid(self) -> str:
        """The hardware's own name for itself, as NVML knows it."""
        return self.runtime.uuid

    # what the engine asks

    def start(self, report: Report, freed: Freed | None = None) -> None:
        self._begin()
        self.launches.callbacks = Callbacks(report, freed or _give_back)

    def open(self, model: Model, slots: int) -> Executor:
        """Move the model's weights and allocate its memory. Blocks: not for the loop of a server that serves.

        One that cannot be moved runs on the CPU, on a thread of its worker. Raises ConfigError.
        """
        self._begin()
        self.runtime.attach()
        if not movable(model):
            log.warning("model %s: no nn.Module with tensors alone: it runs on the CPU", model.info.name)
            return self._open_on_host(model, slots)
        return self._loader.open(model, slots, self._graphs)

    def _open_on_host(self, model: Model, slots: int) -> Executor:
        if self._host is None:
            raise ConfigError(
                f"model {model.info.name!r}: cannot be moved to {self.name}, and there is no other device"
            )
        if not self._host_started:  # most servers never need its threads
            self._host_started = True
            self._host.start(self._host_report)
        return self._host.open(model, slots)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        if isinstance(executor, StreamExecutor):
            return self._loader.trial(executor, slots, size)
        assert self._host is not None  # it placed this model
        return self._host.trial(executor, slots, size)

    def transfer(self, executor: Executor, rows: int, outputs: list[Array]) -> Transfer | None:
        if not isinstance(executor, StreamExecutor):
            return None
        return self._loader.transfer(executor, rows, outputs)

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written: let their copy begin. Returns at once; any thread."""
        if isinstance(executor, StreamExecutor):
            with self.copies.lock:
                if executor.pool.arrive(slots) and not self._closed:
                    self.launchers.shared.send(self.launches.copy, executor.pool)

    def push(self, worker: int, job: Job) -> None:
        """Hand over a unit. Returns at once. Rows that nobody announced are copied first."""
        if isinstance(job.executor, StreamExecutor):
            self.submit(self.workers[worker], job, self.launches.callbacks.report)
        else:
            assert self._host is not None  # it placed this model
            self._host.push(worker, job)

    def withdraw(self, worker: int, job: Job) -> bool:
        """What the launcher has not come to yet. What is on a stream stays there: drivers take nothing back."""
        return job.claim()

    def let_begin(self) -> None:
        """For models that run on the CPU. Others wait for the launcher, which is handed units ahead of time."""
        if self._host is not None and self._host_started:
            self._host.let_begin()

    def free(self, executor: Executor) -> None:
        """The model has been unloaded. What it holds goes when all that was enqueued until now is over.

        Units that were pushed before run and are reported; a unit that is pushed later fails.
        """
        if isinstance(executor, StreamExecutor):
            self._send(self.launches.unload, executor)

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        if self.health.lost is not None:
            return self.health.lost
        if self._host is not None and self._host_started and (gone := self._host.dead()) is not None:
            return gone
        return next((f"{thread.name} has died" for thread in self._running() if not thread.is_alive()), None)

    def close(self, timeout_s: float) -> bool:
        """End the threads after what they have; False if one hangs."""
        with self.copies.lock:
            self._closed = True
            self.launchers.shared.end()
        threads = self._running()
        end = time.monotonic() + timeout_s
        ended = self._host.close(timeout_s) if self._host is not None and self._host_started else True
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        return ended and not any(thread.is_alive() for thread in threads)

    # messages

    def _send(self, function: Callable[..., None], *args: Any) -> bool:
        """Have the launcher call this; False if it takes no more."""
        with self.copies.lock:
            if not self._closed:
                self.launchers.shared.send(function, *args)
            return not self._closed

    def submit(self, worker: StreamWorker, job: Job, report: Report, length: int = 0) -> None:
        """Have the launcher launch a unit; `report` is called with what it gave. `length`: see `Step`."""
        executor = job.executor
        assert isinstance(executor, StreamExecutor)
        if job.stage == WHOLE and executor.activations is not None:
            WholeRun(job, report, lambda part, heard: self.submit(worker, part, heard, length)).begin()
            return
        new = [slot for slot in job.slots if not executor.pool.numbers[slot]]
        if new:
            self.arrive(executor, new)
        unit = UnitRun(job, worker, report, self._launch, self.spec.push_ahead_ns, length)
        if not self._launch(unit):
            completion = failed(job.unit_id, Fault.DEVICE, RuntimeError("the device is closed"))
            completion.worker = worker.index
            report(completion)

    def _launch(self, unit: UnitRun) -> bool:
        return self._send(self.launches.launch, unit)

    def result(self, done: Future[Any]) -> Any:
        """Wait for what the launcher or a completer will bring. Raises what it raised."""
        return done.result()

    def keep(self, pool: StreamPool, slots: Slots) -> None:
        """Slots were given back whose copies may not be over: they come back later. Any thread."""
        self._send(self.launches.watch, pool, slots)

    # threads and streams

    def _begin(self) -> None:
        if self.workers:
            return
        self.runtime.attach()
        runtime, lose = self.runtime, self.health.lose
        self.launches = Launches(
            runtime,
            self.health,
            self.workers,
            streams=self._streams,
            copies=self.copies,
            watcher=self.watcher,
            leaving=self.leaving,
            own_launcher=self.launchers.own,
            clock=self.clock,
        )
        self.launches.callbacks = Callbacks(_nobody_hears, _give_back)
        self.workers += [StreamWorker(index, spec, self._streams.take) for index, spec in enumerate(self.spec.workers)]
        self.completers = [Completer(worker, runtime, self.copies, self.clock, lose) for worker in self.workers]
        self._loader = Loader(self, self._streams, self._placement)
        self._threads = [self.watcher.thread, self.leaving.thread, *(completer.thread for completer in self.completers)]
        self._spawn()

    def _spawn(self) -> None:
        self.launchers.start()
        for thread in self._threads:
            self._start(thread)

    def _start(self, thread: threading.Thread) -> None:
        thread.start()

    def _running(self) -> list[threading.Thread]:
        """The threads that have begun and should be alive."""
        threads = [*(launcher.thread for launcher in list(self.launchers.live)), *self._threads]
        return [thread for thread in threads if thread.ident is not None]

    def _launchers_ended(self) -> None:
        for worker in self.workers:
            worker.steps.put(None)
        self.watcher.end()
        self.leaving.end()

    def _host_report(self, completion: Completion) -> None:
        self.launches.callbacks.report(completion)


def _nobody_hears(completion: Completion) -> None:
    log.warning("a unit of worker %d ended before the device was started", completion.worker)


def _give_back(pool: Pool, slots: Slots) -> None:
    pool.give_back(slots)
