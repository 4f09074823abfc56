"""Before a model serves on a device of streams: it is placed, its graphs are captured, every worker runs every size.

Models are loaded while others serve, so nothing here goes through the launchers but units that have run before.
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
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from app.contract import Array, Model
from app.engine.device import Completion, Job, Ran, copied, fault_of
from app.engine.pool import Slots
from app.engine.streams.captures import Streams
from app.engine.streams.cells import CellStreamExecutor, stepwise
from app.engine.streams.device_pool import InStream, StreamPool
from app.engine.streams.executor import StreamExecutor, WorkerMemory
from app.engine.streams.graphs import Piece, Shape, WorkerGraphs
from app.engine.streams.threads import StreamWorker
from app.engine.tensors import padded
from app.errors import ConfigError
from app.models.placement import Placement, place, warn_of_indices
from app.scheduler.types import Fault

log = logging.getLogger("starling.engine")


class Loader:
    """Places models and tries them, on a stream of its own. Blocks: not for the event loop nor the device's threads."""

    def __init__(
        self, streams: Streams, workers: Sequence[StreamWorker], placement: Placement, in_stream: InStream
    ) -> None:
        self._runtime = in_stream.runtime
        self._health = workers[0].health
        self._streams = streams
        self._workers = workers
        self._placement = placement
        self._in_stream = in_stream
        self._stream = streams.take(0)
        self._lock = threading.Lock()  # held by whoever uses the stream

    def perform(self, work: Callable[[], object]) -> None:
        """Run something on the stream and wait for it. Raises what it raises; whether the device has failed with it is
        said now, and not when the next request comes."""
        errors: list[BaseException] = []

        def attempt() -> None:
            try:
                work()
            except BaseException as exc:
                errors.append(exc)

        self._wait_for(attempt)
        if errors:
            error = errors.pop()
            try:
                self.try_device()
                raise error
            finally:  # or its frames, with the tensors of a batch, would hold one another until the collector comes
                del error

    def try_device(self) -> None:
        """Something has failed: was it the device?"""
        self._wait_for(lambda: None)

    def _wait_for(self, work: Callable[[], object]) -> None:
        try:
            event = self._runtime.event()
            self._runtime.enqueue(self._stream, work)
            self._runtime.record(event, self._stream)
            self._runtime.synchronize(event)
        except BaseException as exc:
            self._health.lose(exc)
            raise

    # placing

    def open(self, model: Model, slots: int, *, graphs: bool) -> StreamExecutor:
        """Move the model's weights and allocate its memory."""
        warn_of_indices(model)
        placed: list[Model] = []
        with self._lock:
            try:
                self.perform(lambda: placed.append(place(model, self._placement)))
                pool = StreamPool(model.info.client_inputs, slots, self._in_stream)
                if stepwise(placed[0]):
                    executor: StreamExecutor = CellStreamExecutor(placed[0], pool, self._runtime, graphs, slots)
                else:
                    executor = StreamExecutor(placed[0], pool, self._runtime, graphs)
                for worker in self._workers:
                    executor.memories.append(self._memory(executor, worker))
            except Exception as exc:
                if fault_of(exc) is not Fault.OOM:  # pinned memory has errors of its own
                    raise
                raise ConfigError(f"does not fit into the device's memory: {exc}") from exc
        return executor

    def _memory(self, executor: StreamExecutor, worker: StreamWorker) -> WorkerMemory:
        info = executor.model.info
        largest = min(worker.spec.capacity, info.batching.max_batch)
        index = self._runtime.empty((executor.index_rows, largest), torch.int64)
        self.perform(index.zero_)  # whatever it gathers are slots
        if not executor.graphs:
            return WorkerMemory(index, None)
        stream = self._streams.take_unused(worker.spec.priority)
        if stream is None:
            log.warning("model %s: no stream is left to capture on: it runs without graphs", info.name)
            executor.graphs = False
            return WorkerMemory(index, None)
        return WorkerMemory(index, WorkerGraphs(self._runtime.graph_pool(), stream))

    # trying

    def trial(
        self, executor: StreamExecutor, slots: Slots, size: int, run: Callable[[StreamWorker, Job], Completion]
    ) -> Ran:
        """Run the rows in `slots` as a batch of `size`: its outputs, and its times as it will be served.

        Each worker that takes the batch runs it twice, because a first run has costs of its own; `run` has a worker run
        a job and waits for it. What the fastest second run gave is returned, so that the checks see what will serve.
        But a graph may pad short rows further than to the longest of the batch, and a model that depends on padding
        would pass the row check: then, and of a cell, which gives no outputs when it is measured, the outputs are those
        of the batch without a graph. Raises what the model raises.
        """
        workers = [worker for worker in self._workers if worker.spec.capacity >= size]
        if not workers:
            raise ConfigError(f"no worker takes a batch of {size} rows")
        with self._lock, torch.inference_mode():
            self._runtime.attach()
            self.perform(lambda: executor.pool.move(slots))
            try:
                self.perform(lambda: executor.rehearse_row(slots))
            except torch.OutOfMemoryError as exc:
                raise ConfigError(
                    f"{len(executor.pool.numbers)} rows under way do not fit into the device's memory: {exc}; a lower"
                    " max_queue makes them fewer"
                ) from exc
            outputs, lengths = executor.answers(self._run_whole(executor, slots, size))
            for worker in workers:
                self._capture_size(executor, slots, executor.memories[worker.index], size)
        executor.pool.renew(slots)
        seconds: list[Ran] = []
        try:
            for worker in workers:
                _, second = [_ran(run(worker, Job(-1, executor, slots, size))) for _ in range(2)]
                seconds.append(second)
        finally:
            executor.pool.renew(slots)
        worker, ran = min(zip(workers, seconds, strict=True), key=lambda one: one[1].busy_ns)
        longest = executor.longest(slots)
        shape = executor.shape(worker.index, size, longest)
        if executor.steps is None and (shape is None or executor.padded_to(shape, longest) == longest):
            return ran
        return replace(ran, outputs=outputs, lengths=lengths)

    def _run_whole(self, executor: StreamExecutor, slots: Slots, size: int) -> list[Array]:
        index = next(memory.index for memory in executor.memories if memory.largest >= size)
        found: list[torch.Tensor] = []

        def whole() -> None:
            executor.put_index(index, slots, size)
            keywords = executor.keywords(padded(slots, size))
            *_, last = executor.whole(index, size, executor.longest(slots), executor.stage(slots, size), **keywords)
            found.extend(value[: len(slots)].cpu() for value in last)

        self.perform(whole)
        return [
            copied(value, spec, len(slots)) for value, spec in zip(found, executor.model.info.returned, strict=True)
        ]

    # capturing

    def _capture_size(self, executor: StreamExecutor, slots: Slots, memory: WorkerMemory, size: int) -> None:
        """Capture the graphs for batches of this size that the worker has not; but first that of its largest batch.

        The memory of the largest serves all others of the pool; a pool that grew with each would hold the sum of them.
        A shape in which the model fails has no graph, and is no fault of the batch that is being tried.
        """
        graphs, name = memory.graphs, executor.model.info.name
        if graphs is None:
            return
        largest, *_ = executor.shapes(memory.largest, memory.largest)
        for shape in (largest, *executor.shapes(memory.largest, size)):
            if not executor.graphs or shape in graphs.tried:
                continue
            graphs.tried.add(shape)
            try:
                pieces = self._capture(executor, slots, memory.index, graphs, shape)
                if pieces is not None:
                    graphs.add(shape, pieces)
            except Exception as exc:
                if self._health.lost is not None:
                    raise
                of_length = f" of length {shape.length}" * (shape.length > 0)
                why = f"{type(exc).__name__}: {exc}"
                log.info("model %s: batches of %d rows%s have no graph: %s", name, shape.size, of_length, why)

    def _capture(
        self, executor: StreamExecutor, slots: Slots, index: torch.Tensor, graphs: WorkerGraphs, shape: Shape
    ) -> list[Piece] | None:
        """A graph of each stage; None if one cannot be captured, and the model will have no more.

        Each is replayed once: the first run of a graph has costs of its own.
        """
        longest, size = executor.padded_to(shape, executor.longest(slots)), shape.size
        seen: list[list[torch.Tensor]] = []
        self.perform(lambda: seen.extend(executor.rehearse(index, slots, size, longest)))
        pieces: list[Piece] = []
        for stage in range(executor.last + 1):
            inputs = graphs.inputs(stage, seen[stage - 1], self._runtime.empty) if stage else []
            self.perform(partial(_fill, inputs, seen[stage - 1] if stage else ()))
            work = partial(executor.captured_stage, stage, inputs, index, size, longest)
            try:
                piece = Piece(*self._runtime.capture(graphs.stream, graphs.pool, work, graphs.kept), inputs)
            except torch.OutOfMemoryError:
                raise
            except Exception as exc:
                self.try_device()
                log.warning(
                    "model %s: runs without further CUDA graphs: a batch could not be captured: %s: %s",
                    executor.model.info.name, type(exc).__name__, exc,
                )  # fmt: skip
                executor.graphs = False
                return None
            graphs.kept.append(piece)
            self.perform(piece.replay)
            pieces.append(piece)
        return pieces


def _fill(targets: Sequence[torch.Tensor], values: Sequence[Any]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def _ran(completion: Completion) -> Ran:
    """What a unit gave. Raises what its model raised."""
    if completion.ran is None:
        raise completion.cause or ConfigError(completion.message)
    return completion.ran
