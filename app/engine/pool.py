"""The input slots of one program: each row is written into a slot when its request arrives (Ebird, section V). And how
rows become a batch, wherever they are.

Each input has a slab, a tensor with one row per slot; a slot is an index into all slabs. Slots are handed out in ring
order, so that rows which arrive one after another are adjacent, and freed in any order; the order begins anew when all
are free. Text and inputs without a largest length have no slab: their slots refer to each row's own array.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch

from app.contract import Array, TensorSpec
from app.models.base import TORCH_DTYPES

Slots = Sequence[int]
Allocate = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]
_NO_LENGTHS: Mapping[str, int] = {}
_FREE = b"\0"
B = TypeVar("B")
#: A row of a batch of tensors [rows, ...]: these, and its position in them.
Place = tuple[tuple[torch.Tensor, ...], int]

#: The signed type of the same width for each unsigned type: torch lacks many kernels for unsigned integers.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def pageable(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Uninitialised memory that is not pinned."""
    return torch.empty(shape, dtype=dtype)


class Pool:
    """Slots for the inputs `specs`, which clients send."""

    def __init__(self, specs: Sequence[TensorSpec], slots: int, allocate: Allocate = pageable) -> None:
        self.specs = specs
        self.end = slots  # `take` hands out the slots below this one
        #: By input: the slab [slots, *bounds] and its numpy view; without a slab, an array [slots] of the rows' own.
        self.slabs: list[torch.Tensor | None] = []
        self.views: list[Array] = []
        #: The slab's bytes, and bytes per slot: writing there costs a third of writing to the numpy view.
        self.raws: list[memoryview | None] = []
        self.strides: list[int] = []
        for spec in specs:
            shape = (slots, *spec.bounds)
            slab = allocate(shape, TORCH_DTYPES[spec.datatype]) if has_slab(spec) else None
            view = np.full(slots, None) if slab is None else _view(slab)
            self.slabs.append(slab)
            self.views.append(view)
            self.raws.append(None if slab is None else view.reshape(-1).view(np.uint8).data)
            self.strides.append(spec.count * spec.dtype.itemsize)
        self._objects = [view for view, slab in zip(self.views, self.slabs, strict=True) if slab is None]
        axes = sorted({axis for spec in specs for axis in spec.axes if axis})
        #: For each variable axis the length of each slot's row.
        self.lengths: dict[str, Array] = {axis: np.zeros(slots, np.int64) for axis in axes}
        self.parameters: list[Mapping[str, Any] | None] = [None] * slots
        self._taken = bytearray(slots)
        self._cursor = 0
        self.used = 0
        self.on_unused: Callable[[], None] | None = None  # called when no slot is in use any more

    @property
    def free(self) -> int:
        return self.end - self.used

    def set_apart(self, rows: int) -> Slots:
        """Reserve the last `rows` slots, which `take` never hands out from then on. Call it before the first `take`."""
        self.end -= rows
        return range(self.end, self.end + rows)

    def take(self, n: int) -> Slots:
        """Take `n` free slots, side by side if possible. Raises MemoryError if fewer are free."""
        if n > self.end - self.used:
            raise MemoryError(f"pool: {n} slots wanted, {self.free} free")
        taken = self._taken
        run = _FREE if n == 1 else bytes(n)
        start = taken.find(run, self._cursor, self.end)
        if start < 0:
            start = taken.find(run, 0, self.end)
        self.used += n
        if start < 0:
            slots = self._scattered(n)
            self._cursor = slots[-1] + 1
            return slots
        if n == 1:
            taken[start] = 1
        else:
            taken[start : start + n] = b"\1" * n
        self._cursor = start + n
        return range(start, start + n)

    def _scattered(self, n: int) -> list[int]:
        slots: list[int] = []
        position = 0
        for _ in range(n):
            position = self._taken.find(0, position, self.end)
            self._taken[position] = 1
            slots.append(position)
        return slots

    def give_back(self, slots: Slots) -> None:
        """Free slots. No unit may still read their rows."""
        taken = self._taken
        for slot in slots:
            taken[slot] = 0
        self.used -= len(slots)
        for values in self._objects:
            values[list(slots)] = None
        if not self.used:
            self._cursor = 0  # with little traffic most of the memory is never touched
            if self.on_unused is not None:
                self.on_unused()

    def write(
        self, slots: Slots, index: int, values: Array | memoryview, lengths: Mapping[str, int] = _NO_LENGTHS
    ) -> None:
        """Copy the values of input number `index` into the slots, or keep the array if the input has no slab.

        `values` is an array [rows, *shape] within the input's bounds, which is cast to its dtype, or the bytes of an
        array of that dtype whose variable axes have the given `lengths`. What lies beyond a row's own length is
        padding: call `set_lengths` first.
        """
        spec = self.specs[index]
        if isinstance(values, memoryview):
            raw = self.raws[index]
            if raw is not None and spec.fixed and isinstance(slots, range):
                stride = self.strides[index]
                raw[slots[0] * stride : (slots[-1] + 1) * stride] = values  # ValueError for another number of bytes
                return
            values = np.frombuffer(values, spec.dtype).reshape(len(slots), *spec.row_shape(lengths))
        if self.slabs[index] is None:
            self._write_objects(slots, index, values)
            return
        view = self.views[index]
        rows: Any = slice(slots[0], slots[-1] + 1) if isinstance(slots, range) else list(slots)
        if spec.fixed:
            view[rows] = values
        else:
            view[(rows, *(slice(length) for length in values.shape[1:]))] = values

    def _write_objects(self, slots: Slots, index: int, values: Array) -> None:
        axes = () if self.specs[index].fixed else self.specs[index].axes
        for slot, value in zip(slots, np.asarray(values, self.specs[index].dtype), strict=True):
            own = tuple(slice(self.lengths[axis][slot] if axis else None) for axis in axes)
            self.views[index][slot] = value[own] if own else value

    def set_lengths(self, slots: Slots, lengths: Mapping[str, int] | Mapping[str, Sequence[int]]) -> None:
        """The lengths of the rows in the slots: one for all of them, or one each."""
        for axis, length in lengths.items():
            if axis in self.lengths:
                self.lengths[axis][list(slots)] = length


def slot_bytes(specs: Sequence[TensorSpec]) -> int:
    """Bytes that the slabs reserve for one slot. Inputs without a slab reserve nothing."""
    return sum(spec.count * spec.dtype.itemsize for spec in specs if has_slab(spec))


def has_slab(spec: TensorSpec) -> bool:
    """Whether memory can be reserved for the input: not for text, nor for rows without a largest length."""
    return spec.bounded and spec.datatype != "BYTES"


def _view(slab: torch.Tensor) -> Array:
    bits = slab.view(torch.uint16) if slab.dtype == torch.bfloat16 else slab
    array: Array = bits.numpy()
    return array


# rows into batches


def indices(numbers: Sequence[int]) -> torch.Tensor:
    """An INT64 tensor on the CPU. torch.tensor would inspect each number, which takes four times as long."""
    return torch.from_numpy(np.array(numbers, np.int64))


def neighbours(places: Sequence[tuple[B, int]]) -> list[tuple[B, int, int]]:
    """Group places (batch, position), at least one, into runs (batch, first, end) of adjacent rows of one batch."""
    runs: list[tuple[B, int, int]] = []
    batch, first = places[0]
    end = first
    for other, position in places:
        if other is not batch or position != end:
            runs.append((batch, first, end))
            batch, first = other, position
        end = position + 1
    runs.append((batch, first, end))
    return runs


def rows_at(
    places: Sequence[Place],
    fit: Callable[[int, torch.Tensor], torch.Tensor] = lambda number, rows: rows,
    into: Sequence[torch.Tensor] | None = None,
) -> list[torch.Tensor]:
    """The rows at these places, [rows, ...], copied `into` the given tensors, or into new memory.

    `fit` makes those of one batch, in its tensor of this number, as long as the others.
    """
    runs = neighbours(places)
    return [
        torch.cat(
            [fit(number, batch[number][first:end]) for batch, first, end in runs],
            out=None if into is None else into[number],
        )
        for number in range(len(places[0][0]))
    ]


def padded(slots: Slots, size: int) -> list[int]:
    """The slots of a batch of `size` rows. Padding rows repeat the last row, which is valid input for any model."""
    return [*slots, *[slots[-1]] * (size - len(slots))]


def pad_beyond(batch: torch.Tensor, dim: int, lengths: torch.Tensor, value: float) -> None:
    """Overwrite the values beyond each row's own length along `dim`. `lengths` must be on the batch's device."""
    positions = torch.arange(batch.shape[dim], device=batch.device)
    beyond = positions[None, :] >= lengths[:, None]
    shape = [1] * batch.ndim
    shape[0], shape[dim] = beyond.shape
    # torch cannot fill unsigned integers wider than bytes. The signed type of the same width takes the same bits.
    signed = SIGNED.get(batch.dtype)
    if signed is not None:
        batch = batch.view(signed)
        value = np.array(int(value) & 0xFFFFFFFFFFFFFFFF, np.uint64).astype(f"i{batch.element_size()}").item()
    batch.masked_fill_(beyond.view(shape), value)


def select_rows(rows: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows at `index`. Unsigned integers are viewed as signed: torch lacks many CUDA kernels for them."""
    signed = SIGNED.get(rows.dtype)
    return rows.index_select(0, index) if signed is None else rows.view(signed).index_select(0, index).view(rows.dtype)
