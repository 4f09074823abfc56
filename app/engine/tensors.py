"""Gathers rows into batches and pads them. Used by every kind of device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch

from app.engine.pool import Slots

B = TypeVar("B")
#: A row of a batch of tensors [rows, ...]: these, and its position in them.
Place = tuple[tuple[torch.Tensor, ...], int]

#: The signed type of the same width for each unsigned type: torch lacks many kernels for unsigned integers.
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


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
