"""One model on a CPU: gather rows from their slots, call the model, copy the outputs out. Runs on a worker's thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model, TensorSpec
from app.engine.devices.base import Ran
from app.engine.devices.pool import Pool, Slots
from app.engine.devices.tensors import adjacent, check_shape, pad_beyond, padded, stack
from app.errors import ConfigError
from app.models.base import normalise


class CpuExecutor:
    """Implements devices.base.Executor. Not for two threads at a time unless the model allows it."""

    keeps_memory = False  # a worker allocates for each batch anew

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model = model
        self.pool = pool
        self.copies = False

    def run(self, slots: Slots, size: int) -> Ran:
        """Run the rows in `slots` as a batch of `size` >= rows. Raises whatever the model raises."""
        begin = time.perf_counter_ns()
        inputs, keywords = self._gather(slots, size)
        gathered = time.perf_counter_ns()
        result = self.model.call(*inputs, **keywords)
        inferred = time.perf_counter_ns()
        outputs = self._scatter(result, len(slots), size)
        return Ran(outputs, gathered - begin, inferred - gathered, time.perf_counter_ns() - inferred)

    def trial(self, slots: Slots, size: int) -> Ran:
        """As `run`, and notice a model that writes into its inputs."""
        before = self._versions(), self._contents(slots)
        ran = self.run(slots, size)
        # Every write through torch moves a tensor's version counter; one through numpy shows in the values alone.
        if (self._versions(), self._contents(slots)) != before:
            self.copies = True
        return ran

    def _gather(self, slots: Slots, size: int) -> tuple[list[Any], dict[str, Any]]:
        rows = padded(slots, size)
        side_by_side = not self.copies and size == len(slots) and adjacent(slots)
        index: torch.Tensor | None = None
        inputs: list[Any] = []
        for position, spec in enumerate(self.pool.specs):
            slab = self.pool.slabs[position]
            if slab is None:
                values = self.pool.objects[position]
                assert values is not None  # an input has a slab or objects, see Pool
                inputs.append(stack([values[slot] for slot in rows]))
                continue
            if side_by_side and spec.fixed:
                inputs.append(slab[slots[0] : slots[0] + size])
                continue
            if index is None:
                index = torch.tensor(rows)
            if spec.fixed:
                inputs.append(slab.index_select(0, index))
            else:
                inputs.append(self._gather_variable(slab, spec, rows, index))
        if self.model.takes_parameters:
            return inputs, {"parameters": [self.pool.parameters[slot] or {} for slot in rows]}
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

    def _versions(self) -> list[int]:
        return [slab._version for slab in self.pool.slabs if slab is not None]

    def _contents(self, slots: Slots) -> list[bytes]:
        rows = list(slots)
        return [view[rows].tobytes() for view in self.pool.views if view is not None]


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
