"""Runs batches of a model on a device of streams: gathers rows, runs the model or a stage, checks results.

A batch runs on a stream, inside a closure passed to the runtime: in the stream's order and not in the launcher's. A
stage gets copies, and its results are copied. A model in one piece has one stage. Some batches have CUDA graphs; models
that take parameters run without, and so do some of variable length, see `variable_axis`.
"""

from __future__ import annotations

import sys
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model, axis_bounds
from app.engine.executor import Executor, gather_rows
from app.engine.pool import Slots, padded
from app.engine.streams.cuda import CudaRuntime
from app.engine.streams.device_pool import StreamPool
from app.engine.streams.worker_memory import Shape, WorkerMemory
from app.models.base import TORCH_DTYPES, returned, with_server_inputs, wrong_type
from app.models.stages.staged import passed_on

Longest = Mapping[str, int]  # of the rows of a batch, along each variable axis

_MOST = 64  # graphs of a worker
_EACH = 16  # for fixed shapes each size up to this has a graph, then powers of two: 21 graphs for 512 rows
_LENGTHS = 6  # halvings of the bound
_SHORTEST = 8  # on a GPU batches of shorter rows are not faster


class StreamExecutor(Executor):
    """For models that run whole or in stages. Used by the launchers, and by the thread that loads the model."""

    keeps_memory = True  # torch's allocator, for each stream
    pool: StreamPool
    flags = False  # the model itself decides which rows end, with flags of each step

    def __init__(self, model: Model, pool: StreamPool, runtime: CudaRuntime, graphs: bool) -> None:
        super().__init__(model, pool)
        self.runtime = runtime
        #: Names of the variable axes, in the order of the rows of a unit's index.
        self.axes = sorted(pool.lengths)
        self.padded_axis, self.padded_bound = variable_axis(model)  # along which graphs pad
        self.graphs = graphs and (not self.axes or bool(self.padded_axis)) and not model.takes_parameters
        self.memories: list[WorkerMemory] = []  # by worker
        #: Rows of the index that a unit sends to the device: its slots, and their lengths along each axis.
        self.index_rows = 1 + len(self.axes)

    def rehearse_row(self, slots: Slots) -> None:
        """Runs on a stream before the first trial, for what can only be learnt from a batch. Here nothing."""

    # which graphs

    def shapes(self, largest: int, size: int) -> list[Shape]:
        """The shapes of graphs for `size` rows on a worker of `largest`: one per length, the longest first."""
        sizes = graph_sizes(largest, fixed=not self.padded_axis)
        padded_size = next(one for one in sizes if one >= size)
        lengths = graph_lengths(self.padded_bound, self.model.info.batching.length_buckets, len(sizes))
        return [Shape(length, padded_size) for length in reversed(lengths)]

    def shape(self, worker: int, size: int, longest: Longest) -> Shape | None:
        """The shape of the worker's graph for a batch of `size` rows with these lengths; None if it has none."""
        length, ends = longest.get(self.padded_axis, 0), self.model.info.batching.length_buckets
        at = bisect_left(ends, length)
        return self.memories[worker].find(size, length, ends[at] if at < len(ends) else sys.maxsize)

    def padded_to(self, shape: Shape, longest: Longest) -> Mapping[str, int]:
        """The lengths of a batch that is padded to the length of a graph."""
        return {self.padded_axis: shape.length} if self.padded_axis else longest

    # a batch, on a stream

    def whole(self, index: torch.Tensor, slots: Slots, size: int, longest: Longest) -> list[torch.Tensor]:
        """Run rows as a batch of `size`, padded to `longest`, through all stages, outside of units. Blocks."""
        self.put_index(index, slots, size)
        passed: list[torch.Tensor] = []
        for stage in range(self.last + 1):
            passed = self.run(stage, passed, index, slots, size, longest)
        return passed

    def rehearse(self, index: torch.Tensor, slots: Slots, size: int, longest: Longest) -> None:
        """Do all that units of this size do, so that it can be captured afterwards."""
        self.whole(index, slots, size, longest)

    def run(
        self, stage: int, passed: Sequence[torch.Tensor], index: torch.Tensor, slots: Slots, size: int, longest: Longest
    ) -> list[torch.Tensor]:
        """Run one stage of the first `size` rows of the index, padded to `longest`, on what the stage before has
        `passed` on. `slots`: of these rows, for what is not in the pool's memory. Raises what the stage raises.
        """
        stages, inputs = self.model.stages, []
        if not stage or stages.again[stage]:
            inputs = self.gather(index, slots, size, longest)
        arguments = list(passed) if stage else inputs
        if stages:
            takes_context = any(place >= len(inputs) for place in stages.again[stage])
            arguments = stages.arguments(stage, arguments, stages.given(inputs) if takes_context else inputs)
        keywords = {} if stage else self.keywords(padded(slots, size))
        result = self.calls[stage](*arguments, **keywords)
        if stage == self.last:
            return self.outputs(result, size, longest)
        results = passed_on(result, stage, size)
        self.passed.learn(stage, results, longest)
        return list(results)

    step = run  # what one launch does after its rows are known, or its graph

    def gather(self, index: torch.Tensor, slots: Slots, size: int, longest: Longest) -> list[Any]:
        """The inputs of a batch, see `run`. Blocks for those without memory on the device."""
        rows, device = padded(slots, size), self.runtime.device
        lengths = {axis: index[row, :size] for row, axis in enumerate(self.axes, 1)}
        sent = [
            self.stacked(position, rows).to(device)
            if slab is None
            else gather_rows(slab, spec, index[0, :size], lengths, longest)
            for position, (spec, slab) in enumerate(zip(self.pool.specs, self.pool.rows, strict=True))
        ]
        return with_server_inputs(self.model.info.inputs, sent, lengths, longest)

    def outputs(self, result: Any, size: int, longest: Longest) -> list[torch.Tensor]:
        """The model's result, checked, as contiguous tensors. ConfigError if it is not as declared."""
        outputs: list[torch.Tensor] = []
        specs = self.model.info.returned
        for spec, value in zip(specs, returned(result, specs, size, longest), strict=True):
            tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            if tensor.dtype != TORCH_DTYPES[spec.datatype] or tensor.layout is not torch.strided:
                raise wrong_type(spec, value)
            outputs.append(tensor.contiguous())
        return outputs

    def put_index(self, index: torch.Tensor, slots: Slots, size: int) -> None:
        """Write the index of a batch to the device, outside of units. Blocks."""
        table = torch.zeros(index.shape, dtype=torch.int64)
        self.write_index(slots, size, table.numpy())
        index.copy_(table)

    # on the host

    def write_index(self, slots: Slots, size: int, table: Array) -> None:
        """Write the index of a batch of `size` rows, [1 + axes, largest size]: the slot of each row, then its lengths
        along every axis. Padding repeats the last row."""
        rows = padded(slots, size)
        table[0, :size] = rows
        for row, axis in enumerate(self.axes, 1):
            table[row, :size] = self.pool.lengths[axis][rows]


# which batches of a model get a CUDA graph (docs/theory/streams.md, Graphs)


def variable_axis(model: Model) -> tuple[str, int]:
    """Name and bound of the one variable axis along which batches may be padded.

    "" and 0 if there is none or several, if it is unbounded, or if the row check does not refuse models that depend on
    padding.
    """
    inputs = model.info.client_inputs
    bounds = axis_bounds(inputs)
    if len(bounds) != 1 or not all(spec.bounded for spec in inputs) or model.checks.row_check != "refuse":
        return "", 0
    return next(iter(bounds.items()))


def graph_sizes(largest: int, fixed: bool) -> list[int]:
    """Batch sizes that get graphs on a worker of so many rows."""
    if fixed:
        powers = [1 << n for n in range(_EACH.bit_length(), largest.bit_length()) if 1 << n < largest]
        return sorted({*range(1, min(largest, _EACH) + 1), *powers, largest})
    steps = {size for n in range(largest.bit_length()) for size in (1 << n, 3 << n)}  # 1, 2, 3, 4, 6, 8, 12, 16, ...
    return sorted({size for size in steps if size < largest} | {largest})


def graph_lengths(bound: int, buckets: tuple[int, ...], sizes: int) -> list[int]:
    """Lengths that batches are padded to, for so many sizes, ascending."""
    most = max(1, _MOST // sizes)
    if buckets:
        return sorted({bucket for bucket in buckets if bucket < bound} | {bound})[:most]
    halves = [-(-bound // (1 << n)) for n in range(min(most, _LENGTHS))]
    return sorted({length for length in halves if length >= _SHORTEST} | {bound})
