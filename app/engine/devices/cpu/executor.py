"""One program on a CPU: gather rows from their slots, call the model, copy the outputs out. Runs on a worker's thread.

It knows slots and tensors, nothing of calls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model, TensorSpec
from app.engine.devices.pool import Pool, Slots
from app.errors import ConfigError
from app.models.base import normalise, row_shape, verify

SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(slots=True)
class Ran:
    """A finished batch: one array [rows, ...] per output, memory of their own; nanoseconds of each part."""

    outputs: list[Array]
    input_ns: int
    infer_ns: int
    output_ns: int

    @property
    def compute_ns(self) -> int:
        return self.input_ns + self.infer_ns + self.output_ns

    @property
    def stream_ns(self) -> int:
        """What a worker's stream is taken for: outputs land on another one while the next batch computes."""
        return self.input_ns + self.infer_ns


class Executor:
    """Runs batches of one model over one pool. Not for two threads at a time unless the model allows it."""

    #: What a batch needs is allocated at its first run and kept by its worker.
    keeps_memory = False

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool
        self.copies = False  # the model writes into its inputs: never hand it a view of the slots

    def run(self, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` >= rows. Raises whatever the model raises.

        Padding repeats the last row: it is valid input, whatever the model expects of its values.
        """
        begin = time.perf_counter_ns()
        inputs, keywords = self._gather(slots, size)
        gathered = time.perf_counter_ns()
        result = self.model.call(*inputs, **keywords)
        inferred = time.perf_counter_ns()
        outputs = self._scatter(result, len(slots), size)
        return Ran(outputs, gathered - begin, inferred - gathered, time.perf_counter_ns() - inferred)

    def _gather(self, slots: Slots, size: int) -> tuple[list[Any], dict[str, Any]]:
        padded = list(slots) + [slots[-1]] * (size - len(slots))
        side_by_side = not self.copies and size == len(slots) and adjacent(slots)
        index: torch.Tensor | None = None
        inputs: list[Any] = []
        for position, spec in enumerate(self.pool.specs):
            slab = self.pool.slabs[position]
            if slab is None:
                values = self.pool.objects[position]
                assert values is not None
                inputs.append(_stack([_row(values[slot]) for slot in padded]))
                continue
            if side_by_side and spec.fixed:
                inputs.append(slab[slots[0] : slots[0] + size])
                continue
            if index is None:
                index = torch.tensor(padded)
            if spec.fixed:
                inputs.append(slab.index_select(0, index))
            else:
                inputs.append(self._gather_variable(slab, spec, padded, index))
        if self.model.takes_parameters:
            return inputs, {"parameters": [self.pool.parameters[slot] or {} for slot in padded]}
        return inputs, {}

    def _gather_variable(
        self, slab: torch.Tensor, spec: TensorSpec, slots: Sequence[int], index: torch.Tensor
    ) -> torch.Tensor:
        """Rows of different lengths, as long as the longest; what lies beyond a row's own length becomes padding.

        What lies there in the slot is an earlier caller's data, so it must never reach the model.
        """
        lengths = {axis: self.pool.lengths[axis][slots] for axis in spec.axes if axis}
        view = slab
        for dim, axis in enumerate(spec.axes):
            if axis:
                view = view.narrow(dim + 1, 0, int(lengths[axis].max()))
        batch = view.index_select(0, index)
        for dim, axis in enumerate(spec.axes):
            if axis and lengths[axis].min() != lengths[axis].max():
                pad_beyond(batch, dim + 1, torch.from_numpy(lengths[axis]), spec.pad_value)
        return batch

    def _scatter(self, result: Any, rows: int, size: int) -> list[Array]:
        """Copy what the model returned into memory of its own, without the padding rows.

        Always a copy: an identity model returns the slots themselves, and a buffer kept by the model would be
        overwritten by the next batch while this one's answers are still being encoded.
        """
        outputs: list[Array] = []
        specs = self.model.info.outputs
        for spec, value in zip(specs, normalise(result, specs, self.model.info.name), strict=True):
            check_shape(spec, value, size)
            outputs.append(_own(value, spec, rows))
        return outputs

    def warm(self, size: int, lengths: Mapping[str, int]) -> int:
        """Run a batch of ones at `size`, check what comes back, and return its nanoseconds.

        `lengths` gives every named axis its length.

        Uses the first slots: only for a pool that serves nobody yet. Raises ConfigError or what the model raises.
        """
        slots = range(size)
        self._write_ones(slots, lengths)
        before = self._versions()
        ran = self.run(slots, size)
        verify(self.model.info, ran.outputs, size, lengths)
        if self._versions() != before or not self._still_ones(slots, lengths):
            self.copies = True
        return ran.compute_ns

    def _write_ones(self, slots: range, lengths: Mapping[str, int]) -> None:
        for position, spec in enumerate(self.pool.specs):
            shape = (len(slots), *row_shape(spec, lengths))
            ones: Array = (
                np.full(shape, b"", object) if spec.datatype == "BYTES" else np.full(shape, _one(spec), spec.dtype)
            )
            self.pool.write(slots, position, ones)
        self.pool.set_lengths(slots, lengths)

    def _still_ones(self, slots: range, lengths: Mapping[str, int]) -> bool:
        """Whether the slots hold what `warm` wrote: a write through numpy moves no counter."""
        for spec, view in zip(self.pool.specs, self.pool.views, strict=True):
            if view is not None:
                place: tuple[Any, ...] = (slice(slots.stop), *map(slice, row_shape(spec, lengths)))
                if (view[place] != _one(spec)).any():
                    return False
        return True

    def _versions(self) -> list[int]:
        """Counters that every write through torch moves, a view's included."""
        return [slab._version for slab in self.pool.slabs if slab is not None]


def check_shape(spec: TensorSpec, value: Any, size: int) -> None:
    """Raise ConfigError unless an output is a batch of `size` rows of the declared shape."""
    if value.shape[0:1] != (size,) or not _fits(spec, tuple(value.shape[1:])):
        raise ConfigError(
            f"output {spec.name!r}: expected a batch of {size} rows of {list(spec.shape)}, "
            f"got shape {list(value.shape)}"
        )


def _fits(spec: TensorSpec, row: tuple[int, ...]) -> bool:
    """Whether an output's row has the declared shape, variable axes left open."""
    if row == spec.shape:
        return True
    return len(row) == len(spec.shape) and all(
        axis or length == declared for axis, length, declared in zip(spec.axes, row, spec.shape, strict=True)
    )


def adjacent(slots: Slots) -> bool:
    """Whether the slots are neighbours in memory, in this order."""
    return isinstance(slots, range) or list(slots) == list(range(slots[0], slots[0] + len(slots)))


def _row(value: Any) -> Any:
    assert value is not None  # a slot in use was written
    return value


def _stack(rows: list[Any]) -> Array:
    """BYTES rows as one array; shorter ones are padded with empty bytes. A row of one element may come bare."""
    if isinstance(rows[0], bytes):
        bare: Array = np.empty(len(rows), object)
        bare[:] = rows
        return bare
    longest = tuple(map(max, zip(*(row.shape for row in rows), strict=True)))
    batch = np.full((len(rows), *longest), b"", object)
    for position, row in enumerate(rows):
        place: tuple[Any, ...] = (position, *map(slice, row.shape))
        batch[place] = row
    return batch


def _one(spec: TensorSpec) -> int:
    return 0x3F80 if spec.datatype == "BF16" else spec.example  # the bits of 1.0


def pad_beyond(batch: torch.Tensor, dim: int, lengths: torch.Tensor, value: float) -> None:
    """Overwrite what lies beyond each row's own length along `dim`. `lengths` lie where the batch does."""
    positions = torch.arange(batch.shape[dim], device=batch.device)
    beyond = positions[None, :] >= lengths[:, None]
    shape = [1] * batch.ndim
    shape[0], shape[dim] = beyond.shape
    # torch fills no unsigned integers but bytes: their bits are those of the signed type, for every pad they can hold.
    signed = SIGNED.get(batch.dtype)
    if signed is not None:
        batch = batch.view(signed)
        value = np.array(int(value) & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(f"i{batch.element_size()}").item()
    batch.masked_fill_(beyond.view(shape), value)


def _own(value: Any, spec: TensorSpec, rows: int) -> Array:
    """The first `rows` rows in memory of their own.

    Cut and copied by numpy: each of torch's operators lets go of the interpreter lock and must get it back, which a
    busy event loop makes the dearest part of a small batch.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach() if value.requires_grad else value
        value = (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
    if value.dtype != spec.dtype:
        raise ConfigError(f"output {spec.name!r}: expected {spec.datatype}, got {value.dtype}")
    return np.array(value[:rows])
