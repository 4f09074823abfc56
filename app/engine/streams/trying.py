"""Batches that run before a model serves, on the stream of whoever loads it, and the graphs that are captured of them.

Not on the launcher: see `loading.py`, which says why, and what a capture may meet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch

from app.engine.pool import Slots
from app.engine.streams.executor import StreamExecutor, WorkerMemory
from app.engine.streams.graphs import Piece, Shape, WorkerGraphs
from app.engine.streams.launcher import Launchers
from app.engine.streams.runtime import Health, Runtime, perform

log = logging.getLogger("starling.engine")

Batch = Callable[[], list[torch.Tensor]]

_LONG_NS = 50_000_000  # of a batch: launching it takes 1 to 10 ms of that


class Tried(Protocol):
    """What trying needs of the device."""

    runtime: Runtime
    launchers: Launchers
    health: Health
    clock: Callable[[], int]


class Trying:
    """On one stream. Blocks; whoever uses it sees to it that nobody else does."""

    def __init__(self, device: Tried, stream: Any) -> None:
        self._device = device
        self._runtime = device.runtime
        self.stream = stream

    def perform(self, work: Callable[[], object]) -> None:
        try:
            perform(self._runtime, self.stream, work)
        except BaseException:
            self.try_device()
            raise

    def try_device(self) -> None:
        """Something failed: was it the device? If so, say it now and not when the next request comes."""
        try:
            perform(self._runtime, self.stream, lambda: None)
        except BaseException as exc:
            self._device.health.lose(exc)

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
        begin = self._device.clock()
        self.perform(work)
        return self._device.clock() - begin

    def batch(
        self, executor: StreamExecutor, slots: Slots, size: int, longest: Mapping[str, int]
    ) -> Callable[..., list[torch.Tensor]]:
        index = next(memory.index for memory in executor.memories if memory.largest >= size)
        table = torch.zeros(index.shape, dtype=torch.int64)
        executor.tell(slots, size, table.numpy())
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
        assert graphs is not None  # see `_prepare`
        longest = executor.padded_to(shape.length)
        try:
            if self.warm(executor, slots, shape.size, longest) >= _LONG_NS:
                executor.without_graph.add(shape)
                return
            found = self._capture_pieces(executor, memory, graphs, shape)
            if found is not None:
                graphs.add(shape, found, self._runtime.empty)
        except Exception as exc:
            if self._device.health.lost is not None:
                raise
            executor.without_graph.add(shape)
            log.info(
                "model %s: batches of %d rows%s have no graph: %s: %s",
                executor.model.info.name, shape.size, f" of length {shape.length}" * (shape.length > 0),
                type(exc).__name__, exc,
            )  # fmt: skip
            return
        if found is None:
            executor.graphs = False

    def _capture_pieces(
        self, executor: StreamExecutor, memory: WorkerMemory, graphs: WorkerGraphs, shape: Shape
    ) -> list[Piece] | None:
        """A graph of each stage, or None if one cannot be captured; those before it stay with their stream."""
        longest = executor.padded_to(shape.length)
        seen: list[list[torch.Tensor]] = []
        if executor.last:
            self.perform(partial(executor.batch, memory.index, shape.size, longest, seen=seen))
        pieces: list[Piece] = []
        try:
            for stage in range(executor.last + 1):
                inputs: list[torch.Tensor] = []
                if stage:
                    inputs = graphs.inputs(seen[stage - 1], shape.size, self._runtime.empty)
                    self.perform(partial(_fill, inputs, seen[stage - 1]))
                work = partial(executor.captured_piece, stage, inputs, memory.index, shape.size, longest)
                found = self._capture(executor, graphs.capture.stream, graphs.pool, work, graphs.capture.kept)
                if found is None:
                    graphs.capture.kept += pieces
                    return None
                pieces.append(Piece(*found, inputs))
        except BaseException:
            graphs.capture.kept += pieces
            raise
        return pieces

    def probe(self, executor: StreamExecutor, slots: Slots, size: int) -> None:
        """Find out whether a model waits for the device, if not all that its units do was captured."""
        work = self.batch(executor, slots, size, executor.longest(slots))
        with suppress(torch.OutOfMemoryError):  # a capture has memory of its own; a wait would have come before
            self._capture(executor, self.stream, self._runtime.graph_pool(), work, [])

    def _capture(
        self, executor: StreamExecutor, stream: Any, pool: Any, work: Batch, kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]] | None:
        """What `work` does, as a graph. None if it cannot be captured: the model has a launcher of its own then.

        Raises OutOfMemoryError.
        """
        try:
            return self._runtime.capture(stream, pool, work, kept)
        except torch.OutOfMemoryError:
            raise
        except Exception as exc:
            self.try_device()
            name = executor.model.info.name
            log.warning(
                "model %s: runs %slaunched by a thread of its own: a batch could not be captured: "
                "%s: %s", name, "" if executor.captured else "without CUDA graphs, ", type(exc).__name__, exc,
            )  # fmt: skip
            if executor.launcher is None:
                executor.launcher = self._device.launchers.own(name)
            return None


def _fill(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)
