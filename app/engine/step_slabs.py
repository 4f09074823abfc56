"""Slabs for what rows of a cell read and write: a place for each row, [places, steps, ...].

Rows that run together may be at different steps, so a step is addressed by its index in the flat slab: place x steps +
step. One operation then reads or writes a step of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch

from app.engine.pool import Allocate
from app.engine.tensors import pad_beyond


def step_bytes(values: Sequence[torch.Tensor]) -> int:
    """Bytes that one row takes of these values [rows, ...]."""
    return sum(prod(value.shape[1:]) * value.element_size() for value in values)


class StepSlabs:
    """`places` x `steps` of the input `x`, None for a cell that feeds itself, and of outputs by number.

    `x` and `ys` are those of one step of some rows, [rows, ...], for shapes and types. `empty` allocates. Raises
    OutOfMemoryError.
    """

    def __init__(
        self, places: int, steps: int, x: torch.Tensor | None, ys: Mapping[int, torch.Tensor], empty: Allocate
    ) -> None:
        def slab(like: torch.Tensor) -> torch.Tensor:
            return empty((places, steps, *like.shape[1:]), like.dtype)

        self.steps = steps
        self.x = None if x is None else slab(x)
        self.ys = {output: slab(y) for output, y in ys.items()}
        self._flat_x = None if self.x is None else self.x.flatten(0, 1)
        self._flat_ys = {output: values.flatten(0, 1) for output, values in self.ys.items()}
        self.row_bytes = steps * step_bytes([*([] if x is None else [x]), *ys.values()])

    def fill(self, places: torch.Tensor, x: torch.Tensor) -> None:
        """Write the inputs [rows, steps, ...] of rows at these places (INT64 [rows])."""
        if self.x is not None:
            length = min(x.shape[1], self.steps)
            self.x[:, :length].index_copy_(0, places, x[:, :length])

    def read(self, at: torch.Tensor) -> torch.Tensor | None:
        """The inputs of the steps at these flat indices (INT64 [n]), [n, ...]."""
        return None if self._flat_x is None else self._flat_x.index_select(0, at)

    def write(self, output: int, at: torch.Tensor, values: torch.Tensor) -> None:
        """Write an output's values [n, ...] of the steps at these flat indices."""
        self._flat_ys[output].index_copy_(0, at, values)

    def written(self, output: int, places: torch.Tensor, steps: int, lengths: torch.Tensor | None) -> torch.Tensor:
        """An output of rows at these places, [rows, steps, ...], with zeros beyond `lengths` (INT64 [rows]): an earlier
        row's values may be there. None: all rows made so many steps.
        """
        batch = self.ys[output][:, :steps].index_select(0, places)
        if lengths is not None:
            pad_beyond(batch, 1, lengths, 0)
        return batch
