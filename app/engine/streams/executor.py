"""One model on a device of streams: how a batch is gathered, run and checked.

A batch runs on a stream, inside a closure that the runtime was given. So it runs in the stream's order and not in the
launcher's: on CUDA that is the same, on the runtimes of the tests it is not.

Rows of inputs without a largest length have no memory on the device: a unit puts its own together on the host and
copies them on its worker's stream, for which its launcher waits.

Each worker has CUDA graphs of some batches, captured at load: one call instead of hundreds, so that launchers hardly
need the interpreter lock (`graphs.py`). A model that takes parameters runs eagerly, and so do some of variable length,
see `variable_axis`.

A model in stages is run one stage at a time, of rows that may come from several batches of the stage before. A model of
one piece is one stage.

What a stage is given is a copy, and what it returns is copied: it may write into the one, so that a unit which failed
runs again from the same rows, and may return the same memory at each batch.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model
from app.engine.activations import Activations
from app.engine.executor import Executor, gather_rows
from app.engine.pool import Slots
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.graphs import Shape, WorkerGraphs, lengths_of, sizes_of, variable_axis
from app.engine.tensors import padded
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES
from app.models.stages.staged import passed_on

_NOT_STAGED: Mapping[int, torch.Tensor] = {}


class Lent:
    """Pinned memory and events of one step, lent to another when it has ended.

    Kept, because torch looks for pinned memory that is free again no further than the first block of the whole process
    whose copy is not over, and asks the driver for more behind it.
    """

    def __init__(self, runtime: CudaRuntime, shape: tuple[int, int]) -> None:
        """`shape` of the index. Raises what pinned memory raises."""
        self._runtime = runtime
        self._results: dict[int, torch.Tensor] = {}
        self.index = runtime.pinned(shape, torch.int64)
        self.events = [runtime.event(timed=True) for _ in range(3)]

    def result(self, number: int, value: torch.Tensor) -> torch.Tensor:
        """Memory for an output of the step. In powers of two, or each batch that is a little larger would ask anew."""
        memory = self._results.get(number)
        if memory is None or memory.numel() < value.nbytes:
            size = 1 << max(9, (value.nbytes - 1).bit_length())
            memory = self._results[number] = self._runtime.pinned((size,), torch.uint8)
        return memory[: value.nbytes].view(value.dtype).view(value.shape)


class WorkerMemory:
    """What one worker holds for one model. `graphs`: None where it has none."""

    def __init__(self, index: torch.Tensor, graphs: WorkerGraphs | None) -> None:
        self.index = index  # on the device; the graphs read it, so there is one for good
        self.graphs = graphs
        self.spare: deque[Lent] = deque()  # of steps that have ended; the launcher takes, the completer gives back

    @property
    def largest(self) -> int:
        """Rows of the largest batch that this worker runs."""
        return self.index.shape[1]


class StreamExecutor(Executor):
    """Made by `StreamDevice.open`; used by its launchers, and by whoever loads the model."""

    keeps_memory = True  # torch's allocator, for each stream
    pool: StreamPool

    def __init__(self, model: Model, pool: StreamPool, runtime: CudaRuntime, graphs: bool) -> None:
        super().__init__(model, pool)
        self.runtime = runtime
        self.calls = model.stages or (model.call,)
        self.last = len(self.calls) - 1
        self.activations = Activations() if model.stages else None
        #: Names of the variable axes, in the order of the rows of a unit's index.
        self.axes = sorted(pool.lengths)
        self.padded_axis = variable_axis(model)  # along which graphs pad
        self.graphs = graphs and (not self.axes or self.padded_axis is not None) and not model.takes_parameters
        self.memories: list[WorkerMemory] = []  # by worker

    @property
    def index_rows(self) -> int:
        """Of what a unit tells the device: slots, and lengths along each axis."""
        return 1 + len(self.axes)

    def rehearse_row(self, slots: Slots) -> None:
        """On a stream, before anything else is tried: for what is known only of a batch."""

    # which graphs

    def shapes(self, largest: int, size: int) -> list[Shape]:
        """The graphs for batches of `size` rows on a worker of `largest`: one for each length, the longest first."""
        sizes = sizes_of(largest, fixed=self.padded_axis is None)
        padded_size = next(one for one in sizes if one >= size)
        if self.padded_axis is None:
            return [Shape(0, padded_size)]
        lengths = lengths_of(self.padded_axis[1], self.model.info.batching.length_buckets, len(sizes))
        return [Shape(length, padded_size) for length in reversed(lengths)]

    def shape(self, worker: int, size: int, longest: Mapping[str, int]) -> Shape | None:
        """That of the worker's graph for a batch of so many rows, the longest so long."""
        graphs = self.memories[worker].graphs
        if graphs is None:
            return None
        if self.padded_axis is None:
            return graphs.find(size, 0, 0)
        length, ends = longest[self.padded_axis[0]], self.model.info.batching.length_buckets
        at = bisect_left(ends, length)
        return graphs.find(size, length, ends[at] if at < len(ends) else sys.maxsize)

    def padded_to(self, shape: Shape, longest: Mapping[str, int]) -> Mapping[str, int]:
        """The length along each axis of a batch that is padded to the length of a graph."""
        return longest if self.padded_axis is None else {self.padded_axis[0]: shape.length}

    # a batch, on a stream

    @property
    def kept(self) -> Activations:
        """What rows have between two stages, of a model that has stages."""
        assert self.activations is not None
        return self.activations

    def reads(self, stage: int) -> bool:
        """Whether a stage gets inputs."""
        return stage == 0 or bool(self.model.again[stage])

    def whole(
        self,
        index: torch.Tensor,
        size: int,
        longest: Mapping[str, int],
        staged: Mapping[int, torch.Tensor] = _NOT_STAGED,
        **keywords: Any,
    ) -> list[list[torch.Tensor]]:
        """The first `size` rows of the index, gathered, padded to the `longest` of each axis, through all stages: what
        each of them returned. `staged`: by position the inputs whose rows are not in the pool's memory.
        """
        inputs = self.gather(index, size, longest, staged)
        seen: list[list[torch.Tensor]] = []
        for stage in range(self.last + 1):
            passed, given = (seen[-1], {}) if stage else ((), keywords)
            seen.append(self.run(stage, inputs, passed, longest, size, **given))
        return seen

    def rehearse(self, index: torch.Tensor, slots: Slots, size: int, longest: Mapping[str, int]) -> list[Any]:
        """All that units of this size do, so that it can be captured: what each stage returned."""
        self.put_index(index, slots, size)
        return self.whole(index, size, longest)

    def captured_stage(
        self, stage: int, passed: Sequence[torch.Tensor], index: torch.Tensor, size: int, longest: Mapping[str, int]
    ) -> list[torch.Tensor]:
        """One stage as a graph runs it."""
        inputs = self.gather(index, size, longest) if self.reads(stage) else ()
        return self.run(stage, inputs, passed, longest, size)

    def run(
        self,
        stage: int,
        inputs: Sequence[torch.Tensor],
        passed: Sequence[torch.Tensor],
        longest: Mapping[str, int],
        size: int,
        **keywords: Any,
    ) -> list[torch.Tensor]:
        """One stage, of what the one before has `passed` on. Raises what it raises."""
        model = self.model
        again = model.again[stage] if model.stages else ()
        given = inputs
        if model.context is not None and any(place >= len(inputs) for place in again):
            given = [*inputs, *model.context(*inputs)]
        arguments = [*(passed if stage else inputs), *(given[place] for place in again)]
        result = self.calls[stage](*arguments, **keywords)
        if stage == self.last:
            return self.outputs(result, size, longest)
        returned = passed_on(result, stage, size)
        self.kept.learn(stage, returned, longest, ())
        return list(returned)

    def gather(
        self,
        index: torch.Tensor,
        size: int,
        longest: Mapping[str, int],
        staged: Mapping[int, torch.Tensor] = _NOT_STAGED,
    ) -> list[Any]:
        """The inputs of the first `size` rows of the index. See `whole`."""
        lengths = {axis: index[row, :size] for row, axis in enumerate(self.axes, 1)}
        sent = [
            staged[position] if rows is None else gather_rows(rows, spec, index[0, :size], lengths, longest)
            for position, (spec, rows) in enumerate(zip(self.pool.specs, self.pool.rows, strict=True))
        ]
        return self.complete(sent, lengths, longest)

    def stage(self, slots: Slots, size: int) -> dict[int, torch.Tensor]:
        """The inputs whose rows have no memory on the device, by position: copied there on the current stream. Blocks
        until they are there."""
        rows, device = padded(slots, size), self.runtime.device
        memories = enumerate(self.pool.rows)
        return {position: self.stacked(position, rows).to(device) for position, memory in memories if memory is None}

    def outputs(self, result: Any, size: int, longest: Mapping[str, int]) -> list[torch.Tensor]:
        """What the model returned, checked, as dense tensors. ConfigError where it is not what was declared."""
        outputs: list[torch.Tensor] = []
        for spec, value in zip(self.model.info.returned, self.returned(result, size, longest), strict=True):
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            if tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise ConfigError(f"output {spec.name!r}: expected {spec.datatype}, got {value.dtype}")
            outputs.append(tensor.contiguous())
        return outputs

    def put_index(self, index: torch.Tensor, slots: Slots, size: int) -> None:
        """Say on the device what a batch is made of that no unit has. Blocks."""
        table = torch.zeros(index.shape, dtype=torch.int64)
        self.write_index(slots, size, table.numpy())
        index.copy_(table)

    # on the host

    def longest(self, slots: Slots) -> dict[str, int]:
        """The length of the longest row along each variable axis."""
        return {axis: int(self.pool.lengths[axis][list(slots)].max()) for axis in self.axes}

    def write_index(self, slots: Slots, size: int, table: Array) -> None:
        """Write what a batch of `size` rows is made of: [1 + axes, largest size], the slot of each row, then each row's
        length along every axis; padding repeats the last row."""
        rows = padded(slots, size)
        table[0, :size] = rows
        for row, axis in enumerate(self.axes, 1):
            table[row, :size] = self.pool.lengths[axis][rows]
