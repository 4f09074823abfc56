"""Batches that run before a model serves, on the stream of whoever loads it, and the graphs that are captured of them.

Not on a launcher: see `loading.py`, which says why, and what a capture may meet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from app.engine.pool import Slots
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.executor import StreamExecutor, WorkerMemory
from app.engine.streams.graphs import Piece, Shape, WorkerGraphs
from app.engine.streams.runtime import Health, perform

log = logging.getLogger("starling.engine")

Batch = Callable[[], list[torch.Tensor]]

_LONG_NS = 50_000_000  # of a batch: launching it takes 1 to 10 ms of that


class Trying:
    """On one stream. Blocks; whoever uses it sees to it that nobody else does."""

    def __init__(self, runtime: CudaRuntime, stream: Any, health: Health, clock: Callable[[], int]) -> None:
        self.runtime = runtime
        self.stream = stream
        self._health = health
        self._clock = clock

    def perform(self, work: Callable[[], object]) -> None:
        try:
            perform(self.runtime, self.stream, work)
        except BaseException:
            self.try_device()
            raise

    def try_device(self) -> None:
        """Something failed: was it the device? If so, say it now and not when the next request comes."""
        try:
            perform(self.runtime, self.stream, lambda: None)
        except BaseException as exc:
            self._health.lose(exc)

    def warm(self, executor: StreamExecutor, slots: Slots, size: int, longest: Mapping[str, int]) -> int:
        """Run the rows in these slots as a batch of this shape, if none has run before. Returns its nanoseconds."""
        shape = (size, *longest.values())
        if shape not in executor.warm:
            batch = self.batch(executor, slots, size, longest)
            executor.warm[shape] = self._time(batch)
            if executor.warm[shape] >= _LONG_NS:  # the first run may have been compiled
                executor.warm[shape] = self._time(batch)
        return executor.warm[shape]

    def _time(self, work: Callable[[], object]) -> int:
        begin = self._clock()
        self.perform(work)
        return self._clock() - begin

    def batch(self, executor: StreamExecutor, slots: Slots, size: int, longest: Mapping[str, int]) -> Batch:
        """What runs the rows in these slots as a batch of this shape."""
        index = next(memory.index for memory in executor.memories if memory.largest >= size)
        table = torch.zeros(index.shape, dtype=torch.int64)
        executor.write_index(slots, size, table.numpy())
        staged: dict[int, torch.Tensor] = {}

        def put() -> None:
            index.copy_(table)
            staged.update(executor.stage(slots, size))

        self.perform(put)
        return partial(executor.batch, index, size, longest, staged, **executor.keywords(slots, size))

    def prepare(self, executor: StreamExecutor, slots: Slots, worker: int, size: int) -> None:
        """Capture the worker's graphs for batches of this size, if it has none; but first that of its largest batch.

        The memory of the largest serves all others of the pool; a pool that grew with each would hold the sum of them.
        """
        memory = executor.memories[worker]
        assert memory.graphs is not None  # `executor.graphs` says so
        largest, *_ = executor.shapes(memory.largest, memory.largest)
        for shape in (largest, *executor.shapes(memory.largest, size)):
            if executor.graphs and shape not in memory.graphs.graphs and shape not in executor.without_graph:
                self._capture_shape(executor, slots, memory, shape)

    def _capture_shape(self, executor: StreamExecutor, slots: Slots, memory: WorkerMemory, shape: Shape) -> None:
        """A shape in which the model fails has no graph, and is no fault of the shape that is being tried.

        Nor has one that takes so long that its launches do not matter, which run while the device computes. Its graph
        would only cost memory, and padding.
        """
        graphs = memory.graphs
        assert graphs is not None  # see `prepare`
        longest = executor.padded_to(shape.length)
        try:
            if self.warm(executor, slots, shape.size, longest) >= _LONG_NS:
                executor.without_graph.add(shape)
                return
            found = self._capture_pieces(executor, memory, graphs, shape)
            if found is None:
                executor.graphs = False
                return
            graphs.add(shape, found, self.runtime.empty)
        except Exception as exc:
            if self._health.lost is not None:
                raise
            executor.without_graph.add(shape)
            log.info(
                "model %s: batches of %d rows%s have no graph: %s: %s",
                executor.model.info.name, shape.size, f" of length {shape.length}" * (shape.length > 0),
                type(exc).__name__, exc,
            )  # fmt: skip

    def _capture_pieces(
        self, executor: StreamExecutor, memory: WorkerMemory, graphs: WorkerGraphs, shape: Shape
    ) -> list[Piece] | None:
        """A graph of each stage, or None if one cannot be captured.

        Each is replayed once: the first run of a graph has costs of its own.
        """
        longest = executor.padded_to(shape.length)
        seen: list[list[torch.Tensor]] = []
        if executor.last:
            self.perform(partial(executor.batch, memory.index, shape.size, longest, seen=seen))
        pieces: list[Piece] = []
        for stage in range(executor.last + 1):
            inputs: list[torch.Tensor] = []
            if stage:
                inputs = graphs.inputs(seen[stage - 1], shape.size, self.runtime.empty)
                self.perform(partial(_fill, inputs, seen[stage - 1]))
            work = partial(executor.captured_piece, stage, inputs, memory.index, shape.size, longest)
            found = self._capture(executor, graphs, work)
            if found is None:
                return None
            pieces.append(Piece(*found, inputs))
            graphs.kept.append(pieces[-1])
            self.perform(pieces[-1].replay)
        return pieces

    def _capture(
        self, executor: StreamExecutor, graphs: WorkerGraphs, work: Batch
    ) -> tuple[Callable[[], None], list[torch.Tensor]] | None:
        """What `work` does, as a graph. None if it cannot be captured. Raises OutOfMemoryError."""
        try:
            return self.runtime.capture(graphs.stream, graphs.pool, work, graphs.kept)
        except torch.OutOfMemoryError:
            raise
        except Exception as exc:
            self.try_device()
            log.warning(
                "model %s: runs without %sCUDA graphs: a batch could not be captured: %s: %s",
                executor.model.info.name, "further " if executor.captured else "", type(exc).__name__, exc,
            )  # fmt: skip
            return None


def _fill(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
