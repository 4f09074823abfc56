"""A worker on a device of streams, and a unit on it from its launch to its report."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from typing import Any

import torch

from app.engine.devices.base import Job, Ran, Report
from app.engine.devices.streams.executor import StagedExecutor
from app.engine.devices.streams.results import Block, index_table
from app.engine.devices.streams.runtime import Runtime
from app.engine.devices.tensors import padded
from app.scheduler.types import WorkerSpec


class Lane:
    """A worker: the stream it computes on, the one its results leave on, its units in order of launch."""

    def __init__(self, index: int, spec: WorkerSpec, stream: Callable[[int], Any]) -> None:
        self.index = index
        self.spec = spec
        self.stream = stream(spec.priority)
        self.out = stream(spec.priority)
        self.flights: queue.SimpleQueue[Flight | None] = queue.SimpleQueue()
        self.ended = 0  # when its last unit had computed


class Flight:
    """A unit between its launch and its report. `error` is set by whichever stream meets it."""

    __slots__ = (
        "begun", "block", "error", "executor", "graph", "launched", "longest", "lost", "number", "outputs", "report",
        "seat", "size", "slots", "unit_id",
    )  # fmt: skip

    def __init__(self, job: Job, lane: Lane, report: Report, begun: int) -> None:
        executor = job.executor
        assert isinstance(executor, StagedExecutor)
        self.unit_id = job.unit_id
        self.executor = executor
        self.slots = job.slots
        self.report = report
        self.begun = self.launched = begun
        self.seat = executor.seats[lane.index]
        self.size, self.graph = self.seat.graph(job.size)
        self.block: Block = self.seat.landing.take()
        self.number = 0
        self.longest: dict[str, int] = {}
        #: Held until the out-event has fired: memory of the worker's stream that the out-stream still reads must not
        #: go back to an allocator that would hand it to the worker's next batch.
        self.outputs: Sequence[torch.Tensor] = ()
        self.error: BaseException | None = None
        self.lost: BaseException | None = None  # the device failed while this was launched: there is no event

    def enqueue(self, runtime: Runtime, lane: Lane) -> None:
        """All of the unit's work, on its two streams. Raises what the runtime raises: the device has failed then."""
        pool, block = self.executor.pool, self.block
        for slot in self.slots:
            pool.flights[slot] = self
        self.number, in_event = pool.in_event(self.slots)
        self._tell()
        runtime.wait(lane.stream, in_event)
        if self.graph is not None and self.seat.read is not None:
            runtime.wait(lane.stream, self.seat.read)
        runtime.enqueue(lane.stream, self._compute)
        runtime.record(block.computed, lane.stream)
        runtime.wait(lane.out, block.computed)
        runtime.enqueue(lane.out, self._land)
        runtime.record(block.landed, lane.out)
        if self.graph is not None:
            self.seat.read = block.landed

    def _tell(self) -> None:
        """Write into the block which slots the batch is made of; padding repeats the last row."""
        pool = self.executor.pool
        lengths = [pool.lengths[axis] for axis in self.executor.axes]
        index_table(padded(self.slots, self.size), lengths, self.block.table)
        for row, axis in enumerate(self.executor.axes, 1):
            self.longest[axis] = int(self.block.table[row, : self.size].max())

    def _compute(self) -> None:
        try:
            if self.graph is None:
                self.outputs = self.executor.forward(self.seat, self.block, self.slots, self.size, self.longest)
            else:
                self.seat.index.copy_(self.block.index, non_blocking=True)
                self.graph.replay()
                self.outputs = self.graph.outputs
        except BaseException as exc:  # a model's: reported when the out-event has fired, for its slots are being read
            self.error = exc

    def _land(self) -> None:
        if self.error is None:
            try:
                self.block.land(self.outputs, len(self.slots))
            except BaseException as exc:
                self.error = exc

    def settle(self, computed: int, last: int, clock: Callable[[], int]) -> Ran:
        """What the unit gave, after its outputs have landed; `computed` is when they were there, on the device.

        Times are the host's. The unit begins when it is launched, or when the worker's unit before it had computed, at
        `last`, if that came later. `input_ns` is the launcher's part; `output_ns` the copies, until they are in hand.
        """
        outputs = self.seat.landing.collect(self.block, self.executor.model.info.outputs)
        start = max(self.begun, last)
        launched = max(start, self.launched)
        return Ran(outputs, launched - start, max(0, computed - launched), clock() - computed, overlapped=True)
