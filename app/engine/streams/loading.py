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
    3. What waits for the device while it is launched, for a value that it reads, cannot be captured: such a model runs
       without graphs.
    4. A capture records and runs nothing, so a batch never runs on a capture stream. It would use the same cuBLAS
       workspace as graphs captured there before, which may be running on their worker.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import torch

from app.contract import Model
from app.engine.device import Completion, Job, Ran
from app.engine.pool import Slots
from app.engine.streams.captures import Streams
from app.engine.streams.cells import CellStreamExecutor, stepwise
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.graphs import WorkerGraphs
from app.engine.streams.trying import Trying
from app.engine.streams.worker import StreamWorker
from app.errors import ConfigError
from app.models.placement import Placement, place, warn_of_indices

log = logging.getLogger("starling.engine")

_STEPS = 8  # of a recurrent model: their median is that of steps which have run before


class Loader:
    """Places models and tries them, on a stream of its own. Blocks: not for the event loop nor the device's threads.

    `run` has a worker run a job, with or without graphs, and waits for it. `push_depth`: units that a worker may have.
    """

    def __init__(
        self,
        trying: Trying,
        streams: Streams,
        workers: Sequence[StreamWorker],
        placement: Placement,
        push_depth: int,
        run: Callable[[StreamWorker, Job, bool], Completion],
    ) -> None:
        self._trying = trying
        self._runtime = trying.runtime
        self._streams = streams
        self._workers = workers
        self._placement = placement
        self._push_depth = push_depth
        self._run_job = run
        self._lock = threading.Lock()  # held by whoever uses the stream

    def open(self, model: Model, slots: int, make_pool: Callable[[], StreamPool], *, graphs: bool) -> StreamExecutor:
        """Move the model's weights and allocate its memory."""
        warn_of_indices(model)
        placed: list[Model] = []
        with self._lock:
            try:
                self._trying.perform(lambda: placed.append(place(model, self._placement)))
                pool = make_pool()
                if stepwise(placed[0]):
                    executor: StreamExecutor = CellStreamExecutor(placed[0], pool, graphs, slots)
                else:
                    executor = StreamExecutor(placed[0], pool, graphs)
                for worker in self._workers:
                    executor.add_memory(self._runtime, self._trying.stream, worker.spec.capacity, self._push_depth)
            except torch.OutOfMemoryError as exc:
                message = f"model {model.info.name!r}: does not fit into the device's memory: {exc}"
                raise ConfigError(message) from exc
            if executor.graphs:
                self._take_capture_streams(executor)
        return executor

    def _take_capture_streams(self, executor: StreamExecutor) -> None:
        for worker, memory in zip(self._workers, executor.memories, strict=True):
            stream = self._streams.take_unused(worker.spec.priority)
            if stream is None:
                log.warning(
                    "model %s: no stream is left to capture on: it runs without graphs", executor.model.info.name
                )
                executor.graphs = False
                return
            memory.graphs = WorkerGraphs(self._runtime.graph_pool(), stream)

    def trial(self, executor: StreamExecutor, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` on each worker that takes it, after its graph has been captured.

        Twice, and the fastest second run is returned: the first has costs of its own. Raises what the model raises.
        """
        workers = [worker for worker in self._workers if worker.spec.capacity >= size]
        if not workers:
            raise ConfigError(f"model {executor.model.info.name!r}: no worker takes a batch of {size} rows")
        with self._lock, torch.inference_mode():
            self._runtime.attach()
            self._trying.perform(lambda: executor.pool.move(slots))
            self._trying.perform(lambda: executor.try_row(slots, self._runtime.empty))
            self._trying.warm(executor, slots, size, executor.longest(slots))
            if executor.graphs:
                for worker in workers:
                    self._trying.prepare(executor, slots, worker.index, size)
        executor.pool.renew(slots)
        job = Job(-1, executor, slots, size)
        rans = [self._run_on(worker, job) for worker in workers]
        executor.pool.renew(slots)
        return min(rans, key=lambda ran: ran.busy_ns)

    def _run_on(self, worker: StreamWorker, job: Job) -> Ran:
        """Run a batch twice: the first run has costs of its own.

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
        self._run(worker, job)
        ran = self._run(worker, job)
        longest = max(executor.longest(job.slots).values(), default=0)
        graph = executor.graph(worker.index, job.size, longest)
        if graph is not None and graph.shape.length > longest:
            ran.outputs = self._run(worker, job, graphs=False).outputs
        return ran

    def _run(self, worker: StreamWorker, job: Job, *, graphs: bool = True) -> Ran:
        completion = self._run_job(worker, job, graphs)
        if completion.ran is None:
            raise completion.cause or ConfigError(completion.message)
        return completion.ran
