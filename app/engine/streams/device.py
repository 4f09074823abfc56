"""A device of streams: copies, batches and results that overlap, kept in order by events (docs/theory/streams.md).

The event loop announces rows (`arrive`) and units (`push`), messages to launchers, which enqueue work on streams; a
completer of each worker waits for its steps and reports its units. A model's error fails its unit. Any error of the
runtime means that the device is lost: all units in flight and all later ones are reported as lost, each once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from app.contract import Model
from app.engine.device import Completion, Device, DeviceOptions, Report, failed
from app.engine.executor import Executor, Job, Ran, Stop
from app.engine.pool import Slots
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.device_pool import InStream
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.loading import Loader
from app.engine.streams.threads import CLOSED, DeviceThread, Health, StreamAllocator, StreamWorker
from app.engine.streams.unit import UnitRun
from app.errors import ConfigError
from app.models.placement import movable
from app.scheduler.types import Fault, WorkerSpec

log = logging.getLogger("starling.engine")

NO_GRAPHS = ", no graphs"  # in the name of a device that captures none, because its batch times differ

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
    ) -> None:
        options = options or DeviceOptions()
        self.name = runtime.name if options.graphs else runtime.name + NO_GRAPHS
        self.spec = options.spec(workers, len(workers), _PUSH_AHEAD_NS)
        self.runtime = runtime
        self.health = Health(self.name)
        self._graphs = options.graphs
        self._spare_host = host
        self._host: Device | None = None  # when it has been started
        self._report: Report

        runtime.attach()
        self._streams = streams = StreamAllocator(runtime.stream)
        self.in_stream = InStream(runtime, streams.take(0))
        self.copier = DeviceThread("copier", runtime, self.health)
        self.workers = [StreamWorker(index, spec, runtime, streams, self.health) for index, spec in enumerate(workers)]
        #: Waits for the last copies of an unloaded model's rows.
        self.leaving = DeviceThread("unloading", runtime, self.health)
        self.launchers = [self.copier, *(worker.launcher for worker in self.workers)]
        self.waiters = [self.leaving, *(worker.completer for worker in self.workers)]
        placement = replace(options.placement, device=runtime.device)
        units = self.spec.push_depth + 1  # of a worker at once: beside those that serve one may be measured
        self._loader = Loader(streams, self.workers, placement, self.in_stream, units)

    # what the engine asks

    def start(self, report: Report) -> None:
        self._report = report
        for one in (*self.launchers, *self.waiters):
            one.thread.start()

    def open(self, model: Model, slots: int) -> Executor:
        """Move the model's weights and allocate its memory. Blocks: not for the loop of a server that serves.

        A model that cannot be moved runs on the CPU. Raises ConfigError.
        """
        self.runtime.attach()
        if movable(model):
            return self._loader.open(model, slots, graphs=self._graphs)
        if self._spare_host is None:
            raise ConfigError(f"cannot be moved to {self.name}, and there is no other device")
        log.warning("model %s: no nn.Module with tensors alone: it runs on the CPU", model.info.name)
        if self._host is None:  # most servers never need its threads
            self._host = self._spare_host
            self._host.start(self._report)
        return self._host.open(model, slots)

    def trial(self, executor: Executor, slots: Slots, size: int) -> Ran:
        if isinstance(executor, StreamExecutor):
            return self._loader.trial(executor, slots, size, self._run)
        assert self._host is not None  # it placed this model
        return self._host.trial(executor, slots, size)

    def _run(self, worker: StreamWorker, job: Job) -> Completion:
        """Have a worker run a job, and wait for it."""
        done: Future[Completion] = Future()
        self._submit(worker, job, Stop(), done.set_result)
        return done.result()

    def arrive(self, executor: Executor, slots: Slots) -> None:
        """The rows in these slots have been written: start their copy. Returns at once; any thread."""
        if isinstance(executor, StreamExecutor):
            executor.pool.arrive(slots)
            self.copier.send(executor.pool.copy_arrived)

    def push(self, worker: int, job: Job, stop: Stop) -> None:
        """Hand over a unit. Returns at once. Rows that were not announced by `arrive` are copied at its launch."""
        if isinstance(job.executor, StreamExecutor):
            self._submit(self.workers[worker], job, stop, self._report)
        else:
            assert self._host is not None  # it placed this model
            self._host.push(worker, job, stop)

    def _submit(self, worker: StreamWorker, job: Job, stop: Stop, report: Report) -> None:
        if not worker.launcher.send(UnitRun(job, stop, worker, report, self.spec.push_ahead_ns).begin):
            report(replace(failed(job.unit_id, Fault.DEVICE, RuntimeError(CLOSED)), worker=worker.index))

    def wait_until_begun(self) -> None:
        """Only for models that run on the CPU. Launchers get their units ahead of time."""
        if self._host is not None:
            self._host.wait_until_begun()

    def free(self, executor: Executor) -> None:
        """Free an unloaded model, whose units have all ended. Rows of calls that have left may still be copied into its
        memory, so it is freed only after these copies on the in-stream. The copier has enqueued them before.
        """
        if isinstance(executor, StreamExecutor):
            self.copier.send(self._unload, executor)

    def _unload(self, executor: StreamExecutor) -> None:
        event = self.runtime.event()
        self.runtime.record(event, self.in_stream.stream)
        self.leaving.send(self._release, executor, event)

    def _release(self, executor: StreamExecutor, event: Any) -> None:
        self.runtime.synchronize(event)
        for worker, memory in zip(self.workers, executor.memories, strict=True):
            if memory.stream is not None:
                memory.clear()  # before the stream can be used again
                self._streams.give_back(worker.spec.priority, memory.stream)

    def dead(self) -> str | None:
        """Why the device can do no more work, or None."""
        if self.health.lost is not None:
            return self.health.lost
        if self._host is not None and (gone := self._host.dead()) is not None:
            return gone
        threads = [one.thread for one in (*self.launchers, *self.waiters) if one.thread.ident is not None]  # have begun
        return next((f"{thread.name} has died" for thread in threads if not thread.is_alive()), None)

    def close(self, timeout_s: float) -> bool:
        """End the threads after the work in their queues; False if one hangs."""
        end = time.monotonic() + timeout_s
        ended = self._host is None or self._host.close(timeout_s)
        return _all_end(self.launchers, end) and _all_end(self.waiters, end) and ended


def _all_end(threads: Sequence[DeviceThread], end: float) -> bool:
    """End the threads and wait for them until `end` by the monotonic clock. Returns whether all have ended."""
    for one in threads:
        one.end()
    for one in threads:
        if one.thread.ident is not None:
            one.thread.join(max(0.0, end - time.monotonic()))
    return not any(one.thread.is_alive() for one in threads)
