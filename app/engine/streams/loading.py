"""Before a model serves on a device of streams: it is placed, its graphs are captured, every worker runs every size.

Models are loaded while others serve, so nothing here goes through the launcher but units that have run before.
    1. A batch that is new to the model runs first on the loading thread and its stream. Compiling takes up to minutes;
       allocations, kernels that are loaded and libraries that make their plans take milliseconds.
    2. Graphs are captured on the loading thread too. CUDA records what is enqueued on the capture stream; what other
       threads enqueue on other streams runs as ever. The capture is thread-local: calls that a capture forbids, such
       as waiting or freeing memory, are forbidden to this thread alone. torch's allocator serves the capture from the
       pool of its graph by looking at the stream that asks, so what other threads allocate stays out of it. While a
       capture is open they cannot give cached memory back to the driver: who then runs out of memory fails, and is
       tried again with fewer rows. torch before 2.13 has one state of the random generator for all captures, and fails
       each replay while one is open: see `cuda.py`.
    3. A model that waits for the device while it is launched, for a value that it reads, gets a launcher of its own.
       The capture finds it: CUDA refuses to record a wait. A model that is not to have graphs is captured once for
       that alone. torch's debug mode for synchronisation would find less (`torch.cuda.synchronize` passes) and is one
       flag for the process: it would warn or raise in the threads that serve. Other things cannot be captured either,
       and for such a model the launcher is a thread too many, no more.
    4. A capture records and runs nothing, so a batch never runs on a capture stream. It would use the same cuBLAS
       workspace as graphs captured there before, which may be running on their worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from statistics import median
from typing import Any, Protocol

import torch

from app.contract import Array, Model
from app.engine.device import Completion, Job, Ran, Report, Transfer
from app.engine.pool import Slots
from app.engine.streams.captures import Streams
from app.engine.streams.cells import CellStreamExecutor, stepwise
from app.engine.streams.device_pool import Copies, StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.graphs import WorkerGraphs
from app.engine.streams.launcher import Launchers
from app.engine.streams.runtime import Health, Runtime, perform
from app.engine.streams.step import AS_LONG_AS_ITS_ROWS
from app.engine.streams.trying import Trying
from app.engine.streams.worker import StreamWorker
from app.errors import ConfigError
from app.models.placement import Placement, place, warn_of_indices
from app.scheduler.types import DeviceSpec

log = logging.getLogger("starling.engine")

_STEPS = 8  # of a recurrent model: their median is that of steps which have run before
_VISITS = 5  # of a transfer that count, after one that does not
_IN_A_ROW = 8  # copies of a visit, one enqueued behind another, so that all share the wait for the last


class Placing(Protocol):
    """What loading needs of the device. `keep` is called with slots given back during their copy."""

    runtime: Runtime
    copies: Copies
    workers: list[StreamWorker]
    launchers: Launchers
    health: Health
    spec: DeviceSpec
    clock: Callable[[], int]

    def submit(self, worker: StreamWorker, job: Job, report: Report, length: int = 0) -> None: ...
    def result(self, done: Future[Any]) -> Any: ...
    def keep(self, pool: StreamPool, slots: Slots) -> None: ...


class Loader:
    """Places models and tries them, on a stream of its own. Blocks: not for the event loop nor the device's threads."""

    def __init__(self, device: Placing, streams: Streams, placement: Placement) -> None:
        self._device = device
        self._runtime = device.runtime
        self._streams = streams
        self._placement = placement
        self._lock = threading.Lock()  # held by whoever uses the stream
        self._trying = Trying(device, streams.take(0))
        self.stream = self._trying.stream

    def open(self, model: Model, slots: int, graphs: bool) -> StreamExecutor:
        """Move the model's weights and allocate its memory."""
        with self._lock:
            return self._open(model, slots, graphs)

    def _open(self, model: Model, slots: int, graphs: bool) -> StreamExecutor:
        device, runtime = self._device, self._runtime
        warn_of_indices(model)
        placed: list[Model] = []
        try:
            self._trying.perform(lambda: placed.append(place(model, self._placement)))
            allocate = runtime.pinned, runtime.empty
            pool = StreamPool(model.info.client_inputs, slots, device.copies, allocate, device.keep)
            if stepwise(placed[0]):
                executor: StreamExecutor = CellStreamExecutor(placed[0], pool, graphs, slots)
            else:
                executor = StreamExecutor(placed[0], pool, graphs)
            for worker in device.workers:
                capacity, depth = worker.spec.capacity, device.spec.push_depth
                executor.add_memory(runtime, self.stream, capacity, depth)
        except torch.OutOfMemoryError as exc:
            raise ConfigError(f"model {model.info.name!r}: does not fit into the device's memory: {exc}") from exc
        if executor.graphs:
            self._find_capture_streams(executor)
        # Whoever launches a unit puts its rows together, or pins memory that grows with its outputs.
        if executor.staged or not all(spec.bounded for spec in model.info.returned):
            executor.launcher = device.launchers.own(model.info.name)
        return executor

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
        workers = [worker for worker in self._device.workers if worker.spec.capacity >= size]
        if not workers:
            raise ConfigError(f"model {executor.model.info.name!r}: no worker takes a batch of {size} rows")
        with self._lock, torch.inference_mode():
            self._runtime.attach()
            before = executor.versions()
            self._trying.perform(lambda: executor.pool.move(slots))
            self._trying.perform(lambda: executor.see(slots, self._runtime.empty))
            self._trying.warm(executor, slots, size, executor.longest(slots))
            if not executor.known:
                self._see_memory(executor, slots, size)
            if executor.graphs:
                for worker in workers:
                    self._trying.prepare(executor, slots, worker.index, size)
            if not executor.known and executor.launcher is None and not (executor.captured and executor.steps is None):
                self._trying.probe(executor, slots, size)
            executor.known = True
        executor.pool.renew(slots)
        job = Job(-1, executor, slots, size)
        rans = [self._run_on(worker, job) for worker in workers]
        executor.pool.renew(slots)
        if executor.versions() != before:
            executor.copies = True
        return min(rans, key=lambda ran: ran.busy_ns)

    def transfer(self, executor: StreamExecutor, rows: int, outputs: Sequence[Array]) -> Transfer:
        """What copying a batch costs, as these outputs."""
        with self._lock:
            return TransferBench(self._runtime, self.stream).measure(executor.pool, rows, outputs)

    def _run_on(self, worker: StreamWorker, job: Job) -> Ran:
        """Run a batch twice, and before that each graph that has not run yet: the first run has costs of its own.

        Returns the times of the batch as it will be served, and outputs of rows that were padded no further than the
        longest of them. The row check compares these. If it compared outputs of graphs, where short rows are padded to
        one length, a model that depends on padding would pass.
        """
        executor = job.executor
        assert isinstance(executor, StreamExecutor)
        if isinstance(executor, CellStreamExecutor) and executor.steps is not None:
            if max(executor.limits(job.slots)) < _STEPS:
                self._run(worker, job)
            return self._run(worker, job)  # of many steps the first few do not matter
        memory = executor.memories[worker.index]
        for shape in executor.shapes(memory.largest, job.size):
            graph = executor.graph(worker.index, shape.size, shape.length)
            if graph is not None and graph.shape not in memory.ran:
                self._run(worker, job, shape.length)
                memory.ran.add(graph.shape)
        self._run(worker, job)
        ran = self._run(worker, job)
        longest = max(executor.longest(job.slots).values(), default=0)
        graph = executor.graph(worker.index, job.size, longest)
        if graph is not None and graph.shape.length > longest:
            ran.outputs = self._run(worker, job, AS_LONG_AS_ITS_ROWS).outputs
        return ran

    def _see_memory(self, executor: StreamExecutor, slots: Slots, size: int) -> None:
        """Which stages return, of two batches, the results of the first being held, the same memory."""
        batch = self._trying.batch(executor, slots, size, executor.longest(slots))
        found: list[list[list[torch.Tensor]]] = [[], []]
        for seen in found:
            self._trying.perform(partial(batch, seen=seen))
        for stage, both in enumerate(zip(*found, strict=True)):
            first, second = ({value.untyped_storage().data_ptr() for value in returned} for returned in both)
            executor.returns_its_own[stage] = bool(first & second - {0})

    def _run(self, worker: StreamWorker, job: Job, length: int = 0) -> Ran:
        done: Future[Completion] = Future()
        self._device.submit(worker, job, done.set_result, length)
        completion: Completion = self._device.result(done)
        if completion.ran is None:
            raise completion.cause or ConfigError(completion.message)
        return completion.ran


class TransferBench:
    """What copies cost, apart from computing: inputs to the device, outputs back. Units do not show it: their inputs
    are copied before they begin, and their outputs while the next one computes.

    On a stream of the device, with nothing else on the device. Blocks.
    """

    def __init__(self, runtime: Runtime, stream: Any, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        self._runtime = runtime
        self._stream = stream
        self._clock = clock

    def measure(self, pool: StreamPool, rows: int, outputs: Sequence[Array]) -> Transfer:
        """A batch of the pool's first `rows` slots, whose outputs are as these. The rows are on the device already."""
        pairs = zip(pool.rows, pool.slabs, strict=True)
        inputs = [(device[:rows], host[:rows]) for device, host in pairs if device is not None and host is not None]
        sizes = [(max(1, output.nbytes),) for output in outputs]
        made = [(self._runtime.pinned(size, torch.uint8), self._runtime.empty(size, torch.uint8)) for size in sizes]
        return Transfer(self._time(inputs), self._time(made))

    def _time(self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> int:
        """One round of copies, target from source; the median of some visits."""

        def copy() -> None:
            for _ in range(_IN_A_ROW):
                for target, source in pairs:
                    target.copy_(source, non_blocking=True)

        times = []
        for _ in range(_VISITS + 1):
            begin = self._clock()
            perform(self._runtime, self._stream, copy)
            times.append((self._clock() - begin) / _IN_A_ROW)
        return round(median(times[1:]))
