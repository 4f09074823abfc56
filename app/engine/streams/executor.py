"""One model on a device of streams: how a batch is gathered, run and checked.

A batch runs on a stream, inside a closure that the runtime was given. So it runs in the stream's order and not in the
launcher's: on CUDA that is the same, on the runtimes of the tests it is not.

Rows of inputs without a largest length have no memory on the device: a unit puts its own together in pinned memory and
copies them on its worker's stream.

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
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model, TensorSpec
from app.engine.activations import Activations, Place
from app.engine.device import Steps
from app.engine.pool import Allocate, Slots
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.graphs import Graph, Shape, WorkerGraphs, lengths_of, sizes_of, variable_axis
from app.engine.streams.results import HostBlock, HostBlocks, result_bytes
from app.engine.streams.runtime import perform
from app.engine.tensors import pad_beyond, padded, select_rows, stack
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES, check_shape, normalise
from app.models.made import with_made
from app.models.stages.staged import passed_on

_NOT_STAGED: Mapping[int, torch.Tensor] = {}


class WorkerMemory:
    """What one worker holds for one model."""

    def __init__(self, index: torch.Tensor, blocks: HostBlocks) -> None:
        self.index = index  # on the device; the graphs read it, so there is one for good
        self.blocks = blocks
        self.graphs: WorkerGraphs | None = None
        self.unloaded = False  # its launcher has enqueued the last of the model's units

    @property
    def largest(self) -> int:
        """Rows of the largest batch that this worker runs."""
        return self.index.shape[1]


class StreamExecutor:
    """Implements engine.device.Executor. Made by `StreamDevice.open`, used by its launcher."""

    one_unit = False
    keeps_memory = True  # torch's allocator, for each stream
    steps: Steps | None = None

    def __init__(self, model: Model, pool: StreamPool, graphs: bool) -> None:
        self.model = model
        self.calls = model.stages or (model.call,)
        self.last = len(self.calls) - 1
        self.activations: Activations | None = Activations() if model.stages else None
        self.pool: StreamPool = pool
        #: Names of the variable axes, in the order of the rows of a block's index.
        self.axes = sorted(pool.lengths)
        self._fixed = not self.axes
        #: Inputs whose rows have no slots on the device, by position.
        self.staged = [position for position, rows in enumerate(pool.rows) if rows is None]
        self._makes = len(model.info.inputs) > len(pool.specs)  # some inputs are made on the device
        self._axis = variable_axis(model)
        self.graphs = graphs and (self._fixed or self._axis is not None) and not model.takes_parameters
        self.memories: list[WorkerMemory] = []  # by worker
        self.without_graph: set[Shape] = set()  # in which the model fails, or takes long
        #: By size and lengths, nanoseconds of batches that have run before the model serves.
        self.warm: dict[tuple[int, ...], int] = {}

    @property
    def captured(self) -> bool:
        """Whether there is a graph."""
        return any(memory.graphs is not None and memory.graphs.graphs for memory in self.memories)

    def sizes(self, largest: int) -> list[int]:
        """Batch sizes that get graphs on a worker of so many rows."""
        return sizes_of(largest, self._fixed)

    def shapes(self, largest: int, size: int) -> list[Shape]:
        """The graphs for batches of `size` rows on a worker of `largest`: one for each length, the longest first."""
        sizes = self.sizes(largest)
        padded_size = next(one for one in sizes if one >= size)
        if self._axis is None:
            return [Shape(padded_size)]
        _, bound = self._axis
        lengths = lengths_of(bound, self.model.info.batching.length_buckets, len(sizes))
        return [Shape(padded_size, length) for length in reversed(lengths)]

    def graph(self, worker: int, size: int, length: int) -> Graph | None:
        """The worker's graph for a batch of so many rows, the longest so long."""
        graphs = self.memories[worker].graphs
        if graphs is None:
            return None
        ends = self.model.info.batching.length_buckets
        at = bisect_left(ends, length)
        return graphs.find(size, length, ends[at] if at < len(ends) else sys.maxsize)

    @property
    def index_rows(self) -> int:
        """Of what a unit tells the device: slots, and lengths along each axis."""
        return 1 + len(self.axes)

    def padded_to(self, length: int) -> dict[str, int]:
        """The length along each axis of a batch that is padded to the length of a graph."""
        return {} if self._axis is None else {self._axis[0]: length}

    def add_memory(self, runtime: CudaRuntime, stream: Any, capacity: int, push_depth: int) -> None:
        """Memory for the next worker."""
        largest = min(capacity, self.model.info.batching.max_batch)
        shape = (self.index_rows, largest)
        nbytes = result_bytes(self.model.info.returned, largest)
        blocks = HostBlocks(partial(HostBlock, runtime, shape, nbytes), push_depth)
        index = runtime.empty(shape, torch.int64)
        perform(runtime, stream, index.zero_)  # as in a block: whatever it gathers are slots
        self.memories.append(WorkerMemory(index, blocks))

    def try_row(self, slots: Slots, empty: Allocate) -> None:
        """On a stream, before anything else is tried: for what is known only of a batch."""

    # a batch, on a stream

    def forward(
        self,
        memory: WorkerMemory,
        block: HostBlock,
        slots: Slots,
        size: int,
        longest: Mapping[str, int],
        stage: int = 0,
        places: Sequence[Place] = (),
    ) -> list[torch.Tensor]:
        """A step run eagerly: what the stage returns, on the device. `places`: where rows are, behind the first."""
        inputs: Sequence[torch.Tensor] = ()
        if self.reads(stage):
            memory.index.copy_(block.index, non_blocking=True)
            inputs = self.gather(memory.index, size, longest, self.stage(slots, size, block))
        passed: list[torch.Tensor] = []
        if stage:
            passed = self.kept.take([*places, *[places[-1]] * (size - len(slots))], stage, longest)
        returned = self.piece(stage, inputs, passed, longest, size, **(self.keywords(slots, size) if not stage else {}))
        return [value.clone() for value in returned]

    def reads(self, stage: int) -> bool:
        """Whether a stage gets inputs."""
        return stage == 0 or bool(self.model.again[stage])

    @property
    def kept(self) -> Activations:
        """What rows have between two stages, of a model that has stages."""
        assert self.activations is not None
        return self.activations

    def batch(
        self,
        index: torch.Tensor,
        size: int,
        longest: Mapping[str, int],
        staged: Mapping[int, torch.Tensor] = _NOT_STAGED,
        seen: list[list[torch.Tensor]] | None = None,
        **keywords: Any,
    ) -> list[torch.Tensor]:
        """The first `size` rows of the index, gathered, padded to the `longest` of each axis, through all stages.

        `staged`: by position the inputs whose rows are not in the pool's memory. `seen` gets what each stage returns.
        """
        inputs = self.gather(index, size, longest, staged)
        returned: list[torch.Tensor] = []
        for stage in range(len(self.calls)):
            returned = self.piece(stage, inputs, returned, longest, size, **({} if stage else keywords))
            if stage < self.last:
                self.kept.learn(stage, tuple(returned), longest, ())
            if seen is not None:
                seen.append(returned)
        return returned

    def captured_piece(
        self, stage: int, passed: Sequence[torch.Tensor], index: torch.Tensor, size: int, longest: Mapping[str, int]
    ) -> list[torch.Tensor]:
        """One stage as a graph runs it."""
        inputs = self.gather(index, size, longest) if self.reads(stage) else ()
        return self.piece(stage, inputs, passed, longest, size)

    def piece(
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
            return self._outputs(result, size, longest)
        returned = passed_on(result, stage, size)
        if longest:
            self.kept.learn(stage, returned, longest, ())
        return list(returned)

    def gather(
        self,
        index: torch.Tensor,
        size: int,
        longest: Mapping[str, int],
        staged: Mapping[int, torch.Tensor] = _NOT_STAGED,
    ) -> list[torch.Tensor]:
        """The inputs of the first `size` rows of the index, padded to the `longest` of each axis. See `batch`."""
        inputs = [
            staged[position] if rows is None else self._gather_rows(rows, spec, index, size, longest)
            for position, (spec, rows) in enumerate(zip(self.pool.specs, self.pool.rows, strict=True))
        ]
        if self._makes:
            lengths = {axis: index[row, :size] for row, axis in enumerate(self.axes, 1)}
            inputs = with_made(self.model.info.inputs, inputs, lengths, longest)
        return inputs

    def _gather_rows(
        self, rows: torch.Tensor, spec: TensorSpec, index: torch.Tensor, size: int, longest: Mapping[str, int]
    ) -> torch.Tensor:
        """As `CpuExecutor._gather_variable`, with the lengths on the device."""
        for dim, axis in enumerate(spec.axes):
            if axis:
                rows = rows.narrow(dim + 1, 0, longest[axis])
        batch = select_rows(rows, index[0, :size])
        for dim, axis in enumerate(spec.axes):
            if axis:
                pad_beyond(batch, dim + 1, index[1 + self.axes.index(axis), :size], spec.pad_value)
        return batch

    def stage(self, slots: Slots, size: int, block: HostBlock | None = None) -> dict[int, torch.Tensor]:
        """Inputs whose rows have no slots on the device, by position, as `batch` takes them.

        They are put together in the block's pinned memory, or in ordinary memory, and copied on the current stream.
        """
        staged = {}
        for position in self.staged:
            spec, values = self.pool.specs[position], self.pool.objects[position]
            assert values is not None  # an input has a slab or objects, see Pool
            rows = [values[slot] for slot in padded(slots, size)]
            batch = torch.from_numpy(stack(rows, spec, np.empty if block is None else partial(block.stage, position)))
            device = self.memories[0].index.device
            staged[position] = batch.view(TORCH_DTYPES[spec.datatype]).to(device, non_blocking=True, copy=True)
        return staged

    def keywords(self, slots: Slots, size: int) -> dict[str, Any]:
        """What a model that takes parameters is called with beside its inputs."""
        if not self.model.takes_parameters:
            return {}
        return {"parameters": [self.pool.parameters[slot] or {} for slot in padded(slots, size)]}

    def _outputs(self, result: Any, size: int, longest: Mapping[str, int]) -> list[torch.Tensor]:
        """What the model returned, checked, as dense tensors. ConfigError where it is not what was declared."""
        specs = self.model.info.returned
        outputs: list[torch.Tensor] = []
        for spec, value in zip(specs, normalise(result, specs, self.model.info.name), strict=True):
            check_shape(spec, value, size, longest)
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            if tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise ConfigError(f"output {spec.name!r}: expected {spec.datatype}, got {value.dtype}")
            outputs.append(tensor.contiguous())
        return outputs

    def longest(self, slots: Slots) -> dict[str, int]:
        """The length of the longest row along each variable axis."""
        return {axis: int(self.pool.lengths[axis][list(slots)].max()) for axis in self.axes}

    def write_index(self, slots: Slots, size: int, table: Array) -> None:
        """Write what a batch of `size` rows is made of, as `HostBlock.index` has it; padding repeats the last row."""
        rows = padded(slots, size)
        table[0, :size] = rows
        for row, axis in enumerate(self.axes, 1):
            table[row, :size] = self.pool.lengths[axis][rows]
