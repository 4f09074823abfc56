"""One model on a device of streams: how a batch is gathered, run and checked.

Everything here runs on a stream of a worker, inside a closure that the runtime was given. So it runs in the stream's
order and not in the launcher's: on CUDA that is the same, on the runtimes of the tests it is not.

Rows of inputs without a largest length have no memory on the device: a unit puts its own together in pinned memory and
copies them on its worker's stream.

Each worker has a CUDA graph for each of some batch sizes, captured at load: one call instead of hundreds, so that one
launcher can serve all streams. Sizes in between are padded to the next. A model with inputs of variable length or with
parameters runs eagerly.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch

from app.contract import Model, TensorSpec
from app.engine.devices.pool import Slots
from app.engine.devices.streams.graphs.replay import Graph, WorkerGraphs
from app.engine.devices.streams.memory.pool import StreamPool
from app.engine.devices.streams.memory.results import HostBlock, HostBlocks, result_bytes
from app.engine.devices.streams.runtime import Runtime, perform
from app.engine.devices.tensors import SIGNED, adjacent, check_shape, pad_beyond, padded, stack
from app.errors import ConfigError
from app.models.base import TORCH_DTYPES, normalise, row_shape
from app.models.made import with_made

log = logging.getLogger("starling.engine")

_EACH = 16  # every size up to here has a graph of its own, then powers of two: 21 graphs for 512 rows
_FIRST_LENGTH = 2  # of variable axes: 1 would be compiled as a case of its own
_SPARE = 2  # blocks of a worker that answers may keep; more answers at a time get copies


class WorkerMemory:
    """What one worker holds for one model."""

    def __init__(self, index: torch.Tensor, blocks: HostBlocks) -> None:
        self.index = index  # on the device; the graphs read it, so there is one for good
        self.blocks = blocks
        self.graphs: WorkerGraphs | None = None

    @property
    def largest(self) -> int:
        """Rows of the largest batch that this worker runs."""
        return self.index.shape[1]

    def graph(self, size: int) -> tuple[int, Graph | None]:
        """The size to run so many rows at, and its graph where there is one."""
        return (size, None) if self.graphs is None else self.graphs.find(size)


class StreamExecutor:
    """Implements devices.base.Executor. Made by `StreamDevice.open`, used by its launcher."""

    keeps_memory = True  # torch's allocator, for each stream

    def __init__(self, model: Model, pool: StreamPool, graphs: bool) -> None:
        self.model = model
        self.pool: StreamPool = pool
        self.copies = False
        #: Names of the variable axes, in the order of the rows of a block's index.
        self.axes = sorted(pool.lengths)
        self._fixed = not self.axes
        self._buffers = [rows for rows in pool.rows if rows is not None]
        self._makes = len(model.info.inputs) > len(pool.specs)  # some inputs are made on the device
        self.graphs = graphs and self._fixed and not model.takes_parameters
        self.memories: list[WorkerMemory] = []  # by worker

    def sizes(self, largest: int) -> list[int]:
        """Batch sizes that get a graph of their own on a worker of so many rows."""
        powers = [1 << n for n in range(_EACH.bit_length(), largest.bit_length()) if 1 << n < largest]
        return sorted({*range(1, min(largest, _EACH) + 1), *powers, largest})

    def add_memory(self, runtime: Runtime, capacity: int, push_depth: int) -> WorkerMemory:
        """Memory for the next worker."""
        largest = min(capacity, self.model.info.batching.max_batch)
        shape = (1 + len(self.axes), largest)
        nbytes = result_bytes(self.model.info.outputs, largest)
        blocks = HostBlocks(partial(HostBlock, runtime, shape, nbytes), push_depth, _SPARE)
        memory = WorkerMemory(runtime.empty(shape, torch.int64), blocks)
        self.memories.append(memory)
        return memory

    # a batch, on a stream

    def forward(
        self, memory: WorkerMemory, block: HostBlock, slots: Slots, size: int, longest: Mapping[str, int]
    ) -> list[torch.Tensor]:
        """The unit run eagerly: its outputs on the device. Neighbours are a view of the slots and are not gathered."""
        inputs: list[torch.Tensor]
        if self._fixed and not self.copies and size == len(slots) and adjacent(slots):
            inputs = [rows[slots[0] : slots[0] + size] for rows in self._buffers]
        else:
            memory.index.copy_(block.index, non_blocking=True)
            inputs = [
                self._stage_rows(position, block, slots, size)
                if rows is None
                else self._gather_rows(rows, self.pool.specs[position], memory, size, longest)
                for position, rows in enumerate(self.pool.rows)
            ]
        if self._makes:
            lengths = {axis: memory.index[row, :size] for row, axis in enumerate(self.axes, 1)}
            inputs = with_made(self.model.info.inputs, inputs, lengths, longest)
        keywords: dict[str, Any] = {}
        if self.model.takes_parameters:
            keywords["parameters"] = [self.pool.parameters[slot] or {} for slot in padded(slots, size)]
        return self._outputs(self.model.call(*inputs, **keywords), size, longest)

    def _gather_rows(
        self, rows: torch.Tensor, spec: TensorSpec, memory: WorkerMemory, size: int, longest: Mapping[str, int]
    ) -> torch.Tensor:
        """As `CpuExecutor._gather_variable`, with the lengths on the device."""
        for dim, axis in enumerate(spec.axes):
            if axis:
                rows = rows.narrow(dim + 1, 0, longest[axis])
        batch = _select(rows, memory.index[0, :size])
        for dim, axis in enumerate(spec.axes):
            if axis:
                pad_beyond(batch, dim + 1, memory.index[1 + self.axes.index(axis), :size], spec.pad_value)
        return batch

    def _stage_rows(self, position: int, block: HostBlock, slots: Slots, size: int) -> torch.Tensor:
        """Rows of any length have no slots on the device: they are put together here and copied as the unit begins."""
        spec, values = self.pool.specs[position], self.pool.objects[position]
        assert values is not None  # an input has a slab or objects, see Pool
        rows = [values[slot] for slot in padded(slots, size)]
        batch = torch.from_numpy(stack(rows, spec, partial(block.stage, position)))
        device = self.memories[0].index.device
        return batch.view(TORCH_DTYPES[spec.datatype]).to(device, non_blocking=True, copy=True)

    def _outputs(self, result: Any, size: int, longest: Mapping[str, int]) -> list[torch.Tensor]:
        """What the model returned, checked, as dense tensors. ConfigError where it is not what was declared."""
        specs = self.model.info.outputs
        outputs: list[torch.Tensor] = []
        for spec, value in zip(specs, normalise(result, specs, self.model.info.name), strict=True):
            check_shape(spec, value, size, longest)
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            if tensor.dtype != TORCH_DTYPES[spec.datatype]:
                raise ConfigError(f"output {spec.name!r}: expected {spec.datatype}, got {value.dtype}")
            outputs.append(tensor.contiguous())
        return outputs

    # before it serves

    def first_use(self) -> None:
        """Call the model for one row and for two, on what lies in the slots, whatever comes of it.

        Compiling takes up to minutes and libraries make their plans: not on the launcher, on which other models wait.
        """
        lengths = dict.fromkeys(self.axes, _FIRST_LENGTH)
        device = self.memories[0].index.device
        with torch.inference_mode():
            for size in range(1, min(2, self.model.info.batching.max_batch) + 1):
                inputs = [
                    torch.zeros(size, *row_shape(spec, lengths), dtype=TORCH_DTYPES[spec.datatype], device=device)
                    if rows is None
                    else rows[(slice(size), *map(slice, row_shape(spec, lengths)))]
                    for spec, rows in zip(self.pool.specs, self.pool.rows, strict=True)
                ]
                if self._makes:
                    tensors = {axis: torch.full((size,), _FIRST_LENGTH, device=device) for axis in self.axes}
                    inputs = with_made(self.model.info.inputs, inputs, tensors, lengths)
                keywords: dict[str, Any] = {"parameters": [{}] * size} if self.model.takes_parameters else {}
                self.model.call(*inputs, **keywords)

    def prepare(self, runtime: Runtime, worker: int, size: int) -> None:
        """Make the worker's graph for this size, if it is to have one and has not. On the launcher, at load.

        Many models cannot be captured, for as many reasons: a value read back, work on the CPU. Such a model runs
        eagerly. Raises ConfigError or OutOfMemoryError where it would not run so either.
        """
        memory = self.memories[worker]
        graphs = memory.graphs
        size = next(captured for captured in self.sizes(memory.largest) if captured >= size)
        if graphs is None or size in graphs.graphs or not self.graphs:
            return
        try:
            self._capture(runtime, memory, graphs, size)
        except (ConfigError, torch.OutOfMemoryError):
            raise
        except Exception as exc:
            self.graphs = False
            log.warning(
                "model %s: runs without CUDA graphs, worker %d could not capture %d rows: %s: %s",
                self.model.info.name, worker, size, type(exc).__name__, exc,
            )  # fmt: skip

    def _capture(self, runtime: Runtime, memory: WorkerMemory, graphs: WorkerGraphs, size: int) -> None:
        def batch() -> list[torch.Tensor]:
            inputs = [_select(rows, memory.index[0, :size]) for rows in self._buffers]
            return self._outputs(self.model.call(*inputs), size, {})

        stream = graphs.capture.stream
        perform(runtime, stream, batch)  # what happens at first use must not happen in the capture
        replay, outputs = runtime.capture(stream, graphs.pool, batch)
        graphs.add(size, replay, outputs, runtime.empty)

    def versions(self) -> list[int]:
        """Counters that every write into the device's rows moves, without the copies that the pool itself made."""
        return [rows._version - self.pool.moves for rows in self._buffers]


def _select(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows listed, as their bits: unsigned integers but bytes lack many of torch's kernels on CUDA."""
    signed = SIGNED.get(rows.dtype)
    return rows.index_select(0, index) if signed is None else rows.view(signed).index_select(0, index).view(rows.dtype)
