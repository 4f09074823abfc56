"""Before a model serves on a device of streams: it is placed, its graphs are captured, every worker runs every size.

Whatever happens at first use, an allocation, a kernel that is loaded, a library that makes its plans, may hold up the
whole device, and must not happen to a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import torch

from app.contract import Model
from app.engine.devices.base import Completion, Job, Ran, Report
from app.engine.devices.pool import Slots
from app.engine.devices.streams.executor import StreamExecutor
from app.engine.devices.streams.graphs.captures import Streams
from app.engine.devices.streams.graphs.replay import WorkerGraphs
from app.engine.devices.streams.memory.pool import Copies, StreamPool
from app.engine.devices.streams.runtime import Runtime, perform
from app.engine.devices.streams.worker import StreamWorker
from app.errors import ConfigError
from app.models.placement import Placement, place, warn_of_indices
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")


class Placing(Protocol):
    """What loading needs of the device. `keep` is told of slots that are given back during their copy."""

    runtime: Runtime
    copies: Copies
    workers: list[StreamWorker]
    spec: DeviceSpec
    lost: str | None

    def submit(self, worker: StreamWorker, job: Job, report: Report) -> None: ...
    def send(self, function: Callable[..., None], *args: Any) -> bool: ...
    def result(self, done: Future[Any]) -> Any: ...
    def keep(self, pool: StreamPool, slots: Slots) -> None: ...


class Loader:
    """Places models and tries them, on a stream of its own. Blocks: not for the event loop nor the device's threads."""

    def __init__(self, device: Placing, streams: Streams, placement: Placement) -> None:
        self._device = device
        self._runtime = device.runtime
        self._streams = streams
        self._placement = placement
        self.stream = streams.take(0)

    def open(self, model: Model, slots: int, graphs: bool) -> StreamExecutor:
        """Move the model's weights and allocate its memory."""
        device, runtime = self._device, self._runtime
        warn_of_indices(model)
        placed: list[Model] = []
        try:
            self._perform(lambda: placed.append(place(model, self._placement)))
            allocate = runtime.pinned, runtime.empty
            pool = StreamPool(model.info.client_inputs, slots, device.copies, allocate, device.keep)
            # A graph is captured before the first row has come: what lies there must be input that no model chokes on,
            # and an id out of range would be an assertion on the device, which loses it. As bytes: not all types fill.
            self._perform(lambda: [rows.view(torch.uint8).zero_() for rows in pool.rows if rows is not None])
            executor = StreamExecutor(placed[0], pool, graphs)
            for worker in device.workers:
                memory = executor.add_memory(runtime, worker.spec.capacity, device.spec.push_depth)
                self._perform(memory.index.zero_)
            with suppress(BaseException):  # warming up says what is wrong with a model
                self._perform(executor.first_use)
        except torch.OutOfMemoryError as exc:
            raise ConfigError(f"model {model.info.name!r}: does not fit into the device's memory: {exc}") from exc
        if executor.graphs:
            self._find_capture_streams(executor)
        return executor

    def _perform(self, work: Callable[[], object]) -> None:
        perform(self._runtime, self.stream, work)

    def _find_capture_streams(self, executor: StreamExecutor) -> None:
        for worker, memory in zip(self._device.workers, executor.memories, strict=True):
            capture = self._streams.capture(worker.index, worker.spec.priority)
            if capture is None:
                log.warning(
                    "model %s: no stream is left to capture on: it runs without graphs", executor.model.info.name
                )
                executor.graphs = False
                return
            memory.graphs = WorkerGraphs(self._runtime.graph_pool(), capture)

    def trial(self, executor: StreamExecutor, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` on each worker that takes it, after its graph has been captured.

        Twice, and the fastest second run is returned: the first has costs of its own. Raises what the model raises.
        """
        for slot in slots:
            executor.pool.numbers[slot] = 0  # written anew, so to be copied anew
        before = executor.versions()
        rans: list[Ran] = []
        for worker in self._device.workers:
            if worker.spec.capacity < size:
                continue
            if executor.graphs:
                self._prepare(executor, worker, size)
            job = Job(-1, executor, slots, size)
            self._run(worker, job)
            rans.append(self._run(worker, job))
        if executor.versions() != before:
            executor.copies = True
        return min(rans, key=lambda ran: ran.busy_ns)

    def _run(self, worker: StreamWorker, job: Job) -> Ran:
        done: Future[Completion] = Future()
        self._device.submit(worker, job, done.set_result)
        completion: Completion = self._device.result(done)
        if completion.ran is None:
            raise completion.cause or ConfigError(completion.message)
        return completion.ran

    def _prepare(self, executor: StreamExecutor, worker: StreamWorker, size: int) -> None:
        """Captures are the launcher's: it alone enqueues work, so nothing of others gets into them."""
        done: Future[None] = Future()

        def prepare() -> None:
            try:
                if self._device.lost is not None:
                    raise ConfigError(f"the device is lost: {self._device.lost}")
                executor.prepare(self._runtime, worker.index, size)
            except BaseException as exc:
                done.set_exception(exc)
            else:
                done.set_result(None)

        if not self._device.send(prepare):
            raise ConfigError("the device is closed")
        self._device.result(done)
