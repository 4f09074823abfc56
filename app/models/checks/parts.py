"""Whether the rows of a batch are independent in one part of a model: in a stage, or in a step of a cell.

A part first runs with each row alone, and what it is given and makes is kept. Then it gets the same of several rows
together, so that rounding errors do not accumulate and one difference causes no others; and that of one row beside
copies of it that hold NaN and infinity, which must not spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from app.contract import Array, SampleRow, TensorSpec
from app.models.base import V2_DATATYPES, as_array
from app.models.checks.row_check import Tolerance, by_row, difference

_SPOILT = (torch.nan, torch.inf)
_SPOILT_HOW = "with NaN and infinity in the place of its neighbours"

Tensors = Sequence[torch.Tensor]


@dataclass(frozen=True, slots=True)
class Alone:
    """What a part is given and makes of one row by itself: tensors [1, ...]."""

    row: SampleRow
    given: Tensors
    made: Tensors


@dataclass(frozen=True, slots=True)
class Together:
    """Rows in one batch, what a part is given of them, and in words how each of them is run."""

    rows: Sequence[Alone]
    given: Tensors
    how: Sequence[str]


@dataclass(frozen=True, slots=True)
class Part:
    """`run` makes tensors of those that it is given of some rows, without changing them; `specs` describe the former.

    `most`: rows of a batch.
    """

    specs: Sequence[TensorSpec]
    run: Callable[[Tensors, Sequence[SampleRow]], Tensors]
    tolerance: Tolerance
    most: int

    def together(self, batches: Iterable[Together]) -> str | None:
        """What differs most of all that rows get in company, in words. Raises what the part raises."""
        alone: list[Alone] = []
        got: list[list[Array]] = []
        how: list[str] = []
        for batch in batches:
            rows = [one.row for one in batch.rows]
            got += by_row(self.specs, list(map(comparable, self.run(batch.given, rows))), rows)
            alone += batch.rows
            how += batch.how
        return self._difference(alone, got, how)

    def spoilt(self, one: Alone, where: str) -> str | None:
        """What differs of a row, `where` says at which place, in company of copies without a number in them."""
        if not any(value.is_floating_point() for value in one.given):
            return None
        rows = [one.row] * min(1 + len(_SPOILT), self.most)
        try:
            made = self.run([_spoilt(value, len(rows)) for value in one.given], rows)
        except Exception:  # it may refuse any NaN
            return None
        got = by_row(self.specs, list(map(comparable, made)), rows[:1])
        return self._difference([one], got, [f"{where} {_SPOILT_HOW}"])

    def changed(self, again: Sequence[Alone]) -> bool:
        """Whether it makes something else of these rows now."""
        return self.together(Together([one], one.given, [""]) for one in again) is not None

    def _difference(self, alone: Sequence[Alone], got: Sequence[Sequence[Array]], how: Sequence[str]) -> str | None:
        expected = [by_row(self.specs, list(map(comparable, one.made)), [one.row])[0] for one in alone]
        return difference(self.specs, self.tolerance, expected, got, how)


def spec_of(name: str, value: torch.Tensor, axis: str = "") -> TensorSpec:
    """What the comparison must know of a tensor, rows first; `axis` is the second one's name."""
    axes = tuple(axis if dim == 0 else "" for dim in range(value.ndim - 1))
    shape = tuple(value.shape[1:])
    return TensorSpec(name, V2_DATATYPES.get(value.dtype, "FP64"), shape, axes, shape)


def comparable(value: torch.Tensor) -> Array:
    """A tensor as the comparison takes it: of a type that V2 does not have, the real part."""
    if value.dtype not in V2_DATATYPES:
        value = (value.real if value.is_complex() else value).to(torch.float64)
    return as_array(value)


def _spoilt(value: torch.Tensor, size: int) -> torch.Tensor:
    """A row [1, ...] and copies of it, which are NaN or infinite where there are such values."""
    batch = torch.cat([value] * size)
    if value.is_floating_point():
        for row, wrong in zip(batch[1:], _SPOILT, strict=False):
            row.fill_(wrong)
    return batch
