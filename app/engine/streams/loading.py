"""Loads a model on a device of streams: places it, captures its graphs, and runs every size on every worker.

Models are loaded while others serve, so launchers only get batches of sizes that have run before, and what may wait for
the driver runs here, on the loading thread and its stream. Batches never run on a capture stream. The reasons are in
docs/theory/streams.md, Loading.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar
from weakref import WeakSet

import torch

from app.contract import Array, Model
from app.engine.device import Completion, fault_of
from app.engine.executor import Job, Ran
from app.engine.pool import Slots
from app.engine.streams.cells import CellStreamExecutor, stepwise
from app.engine.streams.device_pool import InStream, StreamPool
from app.engine.streams.executor import StreamExecutor
from app.engine.streams.threads import StreamAllocator, StreamWorker
from app.engine.streams.unit import most_steps
from app.engine.streams.worker_memory import Shape, StageGraph, WorkerMemory, reads_of
from app.errors import ConfigError
from app.models.base import copied
from app.models.placement import Placement, place, warn_of_indices
from app.scheduler.types import Fault

T = TypeVar("T")

log = logging.getLogger("starling.engine")


@dataclass(eq=False)
class Loader:
    """Places and tries models, on a stream of its own. Blocks: not for the event loop nor the device's threads.

    `units`: of one worker that may be under way at once.
    """

    streams: StreamAllocator
    workers: Sequence[StreamWorker]
    placement: Placement
    in_stream: InStream
    units: int

    def __post_init__(self) -> None:
        self._runtime, self._health = self.in_stream.runtime, self.workers[0].health
        self._stream = self.streams.take(0)
        self._lock = threading.Lock()  # held while the stream is used
        #: Models that draw random numbers, where that and captures exclude each other.
        self._drawing: WeakSet[StreamExecutor] = WeakSet()

    def perform(self, work: Callable[[], T]) -> T:
        """Run `work` on the stream and wait for it. Raises what it raises, after testing whether the device still
        works: that must be known now, not at the next request.
        """
        done: Future[T] = Future()

        def attempt() -> None:
            try:
                done.set_result(work())
            except BaseException as exc:
                done.set_exception(exc)

        try:
            event = self._runtime.event()
            self._runtime.enqueue(self._stream, attempt)
            self._runtime.record(event, self._stream)
            self._runtime.synchronize(event)
        except BaseException as exc:
            self._health.lose(exc)
            raise
        try:
            if done.exception() is not None:
                self.perform(_nothing)
            return done.result()
        finally:  # an error's frames, with the tensors of a batch, would form a cycle that only the collector frees
            done = Future()

    # placing

    def open(self, model: Model, slots: int, *, graphs: bool) -> StreamExecutor:
        """Move the model's weights and allocate its memory."""
        warn_of_indices(model)
        with self._lock:
            try:
                self.perform(self._runtime.settle)
                placed = self.perform(partial(place, model, self.placement))
                pool = StreamPool(model.info.client_inputs, slots, self.in_stream)
                kind = CellStreamExecutor if stepwise(placed) else StreamExecutor
                executor = kind(placed, pool, self._runtime, graphs)
                for worker in self.workers:
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
        stream = self.streams.take_unused(worker.spec.priority) if executor.graphs else None
        if executor.graphs and stream is None:
            log.warning("model %s: no stream is left to capture on: it runs without graphs", info.name)
            executor.graphs = False
        return WorkerMemory(index, self._runtime, stream)

    # trying

    def trial(
        self, executor: StreamExecutor, slots: Slots, size: int, run: Callable[[StreamWorker, Job], Completion]
    ) -> Ran:
        """Run the rows in `slots` as a batch of `size`: its outputs, and its times as it will be served.

        Each worker that takes the batch runs it twice, because first runs have extra costs; `run` has a worker run a
        job and waits for it. The result of the fastest second run is returned, so that checks see what will serve. Two
        exceptions return the outputs of a run without a graph: if a graph pads rows further than to the longest of the
        batch, since otherwise a model that depends on padding would pass the row check; and a cell, which has no
        outputs when it is measured. Raises what the model raises.
        """
        workers = [worker for worker in self.workers if worker.spec.capacity >= size]
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
            drawn = self._runtime.drawn()
            outputs, lengths = executor.answers(self._run_whole(executor, slots, size))
            if self._runtime.drawn() != drawn:
                self._drawing.add(executor)
            if executor.graphs and self._drawing:
                names = ", ".join(sorted(one.model.info.name for one in self._drawing))
                why = "before torch 2.13 nothing can be captured while a model is loaded that draws random numbers"
                _capture_no_more(executor, f"{why}: {names}")
            for worker in workers:
                self._capture_size(executor, slots, executor.memories[worker.index], size)
        seconds: list[Ran] = []
        try:
            for worker in workers:
                _, second = [_ran(run(worker, Job(-1, executor, slots, size))) for _ in range(2)]
                seconds.append(second)
                steps = self.units if executor.activations is None else most_steps(self.units)
                executor.memories[worker.index].reserve(steps)
        finally:
            executor.pool.renew(slots)
        worker, ran = min(zip(workers, seconds, strict=True), key=lambda one: one[1].busy_ns)
        longest = executor.lengths_of(slots)[1]
        shape = executor.shape(worker.index, size, longest)
        if executor.steps is None and (shape is None or executor.padded_to(shape, longest) == longest):
            return ran
        return replace(ran, outputs=outputs, lengths=lengths)

    def _run_whole(self, executor: StreamExecutor, slots: Slots, size: int) -> list[Array]:
        index = next(memory.index for memory in executor.memories if memory.largest >= size)

        def whole() -> list[torch.Tensor]:
            outputs = executor.whole(index, slots, size, executor.lengths_of(slots)[1])
            return [value[: len(slots)].cpu() for value in outputs]

        found = self.perform(whole)
        return [
            copied(value, spec, len(slots)) for value, spec in zip(found, executor.model.info.returned, strict=True)
        ]

    # capturing

    def _capture_size(self, executor: StreamExecutor, slots: Slots, memory: WorkerMemory, size: int) -> None:
        """Capture the missing graphs of the worker for batches of this size, but first that of its largest batch.

        The memory pool of the largest graph suffices for all others; if it grew with each graph it would hold their
        sum. A shape in which the model fails gets no graph, and does not fail the batch that is being tried.
        """
        name = executor.model.info.name
        largest, *_ = executor.shapes(memory.largest, memory.largest)
        for shape in (largest, *executor.shapes(memory.largest, size)):
            if not executor.graphs or shape in memory.tried:
                continue
            memory.tried.add(shape)
            try:
                graphs = self._capture(executor, slots, memory, shape)
                if graphs is not None:
                    memory.add(shape, graphs)
            except Exception as exc:
                if self._health.lost is not None:
                    raise
                of_length = f" of length {shape.length}" * (shape.length > 0)
                log.info("model %s: batches of %d rows%s have no graph: %r", name, shape.size, of_length, exc)

    def _capture(
        self, executor: StreamExecutor, slots: Slots, memory: WorkerMemory, shape: Shape
    ) -> list[StageGraph] | None:
        """A graph of each stage; None if one cannot be captured: then the model gets no more graphs.

        Each is replayed once, because the first run of a graph has extra costs.
        """
        longest, size = executor.padded_to(shape, executor.lengths_of(slots)[1]), shape.size
        rehearse = partial(executor.rehearse, memory.index, slots, size, longest)
        self.perform(rehearse)
        memory.kept.append(self.perform(partial(reads_of, rehearse)))  # again: it now reads what it has made and kept
        graphs: list[StageGraph] = []
        for stage in range(executor.last + 1):
            given = graphs[-1].outputs if graphs else ()
            inputs = memory.inputs(stage, given)
            if given:
                self.perform(partial(torch._foreach_copy_, inputs, given))
            work = partial(executor.step, stage, inputs, memory.index, slots, size, longest)
            try:
                graph = memory.capture(work, inputs)
            except torch.OutOfMemoryError:
                raise
            except Exception as exc:
                self.perform(_nothing)
                _capture_no_more(executor, f"a batch could not be captured: {type(exc).__name__}: {exc}")
                return None
            self.perform(graph.replay)
            graphs.append(graph)
        return graphs


def _nothing() -> None:
    """Tests whether the device still works, after something has failed."""


def _capture_no_more(executor: StreamExecutor, why: str) -> None:
    executor.graphs = False
    log.warning("model %s: runs without further CUDA graphs: %s", executor.model.info.name, why)


def _ran(completion: Completion) -> Ran:
    """The result of a unit. Raises what its model raised."""
    if completion.ran is None:
        raise completion.cause or ConfigError(completion.message)
    return completion.ran
