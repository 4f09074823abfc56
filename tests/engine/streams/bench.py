"""A stepped device with one model, taken through its steps one by one."""

from __future__ import annotations

from typing import Any

from runtimes import FakeRuntime, FakeStream
from torch import nn

from app.contract import Array, Model
from app.engine.device import Completion, DeviceOptions
from app.engine.executor import Job, Stop
from app.engine.streams.worker_memory import Shape

from ..conformance.stepped import SteppedStreams, try_batch
from ..rig import Linear, make_model, rows_of

EAGER, GRAPHS = DeviceOptions(graphs=False), DeviceOptions()


class Bench:
    """A stepped device with one model, and what it reported. Streams move only when told."""

    def __init__(
        self, *capacities: int, options: DeviceOptions = EAGER, model: nn.Module | Model | None = None,
        tried: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """`tried`: the sizes of batches that have run before it serves."""
        self.runtime = FakeRuntime()
        self.device = SteppedStreams(self.runtime, capacities or (4,), options)
        if not isinstance(model, Model):
            model = make_model(model or Linear(), max_batch=4)
        self.executor = self.device.watched(model, 8)
        self.pool = self.executor.pool
        self.reports: list[Completion] = []
        self.device.start(self.reports.append)
        for size in tried:
            self.try_batch(size)

    def try_batch(self, size: int, **lengths: int) -> None:
        try_batch(self.device, self.executor, size, lengths)

    def arrive(self, *values: float) -> list[int]:
        return self.arrive_rows(rows_of(*values))

    def arrive_rows(self, rows: Any) -> list[int]:
        """Rows of any input; of one with a variable axis, each of its own length."""
        slots = self.pool.take(len(rows))
        for slot, row in zip(slots, rows, strict=True):
            lengths = {axis: len(row) for axis in self.pool.lengths}
            self.pool.set_lengths([slot], lengths)
            self.pool.write([slot], 0, row[None], lengths)
        self.device.arrive(self.executor, slots)
        return list(slots)

    def push(self, slots: list[int], worker: int = 0, unit: int = 0, stage: int = -1, steps: int = 1) -> None:
        self.device.push(worker, Job(unit, self.executor, slots, len(slots), stage, steps), Stop())

    def ran(self, slots: list[int], **options: int) -> Completion:
        """What a unit gives when all has ended."""
        self.push(slots, unit=len(self.reports), **options)
        self.settle()
        return self.reports[-1]

    def outputs(self, unit: int) -> Array:
        return self.reports[unit].ran.outputs[0]

    def settle(self) -> None:
        while self.device.turn():
            pass

    def run(self, stream: FakeStream) -> None:
        """One stream alone does what it can."""
        streams, self.runtime.streams = self.runtime.streams, [stream]
        while self.runtime.step():
            pass
        self.runtime.streams = streams

    @property
    def arrivals(self) -> FakeStream:
        return self.device.in_stream.stream

    @property
    def shapes(self) -> list[Shape]:
        """Those that the first worker has graphs of."""
        return list(self.executor.memories[0].graphs)
