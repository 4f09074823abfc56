"""Slabs for what rows of a cell read and write: a place for each row, [places, steps, ...].

Rows that run together may be at different steps, so a step is addressed by its index in the flat slab: place x steps +
step. One operation then reads or writes a step of all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import torch

from app.engine.executor import Steps
from app.engine.pool import Allocate, pad_beyond
from app.models.recurrent.cells import CellModel, CellStep


class FirstStep(NamedTuple):
    """The first step of some rows, for the shapes and types of what they take, [rows, ...].

    `x`: its input, None for a cell that feeds itself. `every`: by number, the outputs of which each step is kept.
    `longest`: the most steps of a row; 0: unbounded.
    """

    x: torch.Tensor | None
    stepped: CellStep
    every: Mapping[int, torch.Tensor]
    longest: int
    steps: Steps

    @classmethod
    def of(cls, cell: CellModel, inputs: Sequence[Any], keywords: Mapping[str, Any]) -> FirstStep:
        """Begin rows of these arguments of a call, and make a step. Raises what the cell raises."""
        begun, most = cell.begin(inputs, **keywords), cell.axis.most or 0
        x = None if begun.x is None else begun.x[:, 0]
        stepped = cell.step(x, begun.state)
        every = {place: y for place, y in enumerate(stepped.ys) if cell.keeps(place)}
        own = 0 if begun.x is None or cell.axis.name else begun.x.shape[1]
        return cls(x, stepped, every, most or own, Steps(most, x is None))

    @property
    def step_bytes(self) -> int:
        """What the input and the kept outputs of a row's step take."""
        values = [*([] if self.x is None else [self.x]), *self.every.values()]
        return sum(prod(value.shape[1:]) * value.element_size() for value in values)


class StepSlabs:
    """`places` x `steps` of the input `x`, None for a cell that feeds itself, and of outputs by number.

    `first`: for shapes and types. `empty` allocates. Raises OutOfMemoryError.
    """

    def __init__(self, places: int, steps: int, first: FirstStep, empty: Allocate) -> None:
        def slab(like: torch.Tensor) -> torch.Tensor:
            return empty((places, steps, *like.shape[1:]), like.dtype)

        self.steps = steps
        self.x = None if first.x is None else slab(first.x)
        self.ys = {output: slab(y) for output, y in first.every.items()}
        self._flat_x = None if self.x is None else self.x.flatten(0, 1)
        self._flat_ys = {output: values.flatten(0, 1) for output, values in self.ys.items()}
        self.row_bytes = steps * first.step_bytes

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

    def written(self, output: int, places: torch.Tensor, steps: int, lengths: torch.Tensor) -> torch.Tensor:
        """An output of rows at these places, [rows, steps, ...], with zeros beyond `lengths` (INT64 [rows]): an earlier
        row's values may be there.
        """
        batch = self.ys[output][:, :steps].index_select(0, places)
        pad_beyond(batch, 1, lengths, 0)
        return batch
