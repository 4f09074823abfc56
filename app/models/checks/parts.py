"""Whether the rows of a batch are independent in one part of a model: in a stage, or in a step of a cell.

A part first runs each row alone, and the tensors that it takes and returns are kept. Then it runs on these tensors of
several rows in one batch, so that rounding errors do not accumulate and one difference causes no others. Last, it runs
one row beside copies of it that hold NaN and infinity, which must not spread.
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
class LoneRow:
    """The tensors [1, ...] that a part takes and returns for one row alone."""

    row: SampleRow
    given: Tensors
    made: Tensors


@dataclass(frozen=True, slots=True)
class SharedBatch:
    """Rows in one batch, the tensors that the part takes for them, and in words how each row is run."""

    rows: Sequence[LoneRow]
    given: Tensors
    how: Sequence[str]


@dataclass(frozen=True, slots=True)
class Part:
    """`run` takes the tensors of some rows, which it must not change, and returns others, which `specs` describe.

    `most`: the most rows of a batch.
    """

    specs: Sequence[TensorSpec]
    run: Callable[[Tensors, Sequence[SampleRow]], Tensors]
    tolerance: Tolerance
    most: int

    def compare_shared(self, batches: Iterable[SharedBatch]) -> str | None:
        """The largest difference between rows in shared batches and alone, in words. Raises what the part raises."""
        alone: list[LoneRow] = []
        got: list[list[Array]] = []
        how: list[str] = []
        for batch in batches:
            rows = [one.row for one in batch.rows]
            got += by_row(self.specs, list(map(comparable, self.run(batch.given, rows))), rows)
            alone += batch.rows
            how += batch.how
        return self._difference(alone, got, how)

    def compare_beside_nan(self, one: LoneRow, where: str) -> str | None:
        """The largest difference of a row when its neighbours hold NaN and infinity; `where` is its place in words."""
        if not any(value.is_floating_point() for value in one.given):
            return None
        rows = [one.row] * min(1 + len(_SPOILT), self.most)
        try:
            made = self.run([_spoilt(value, len(rows)) for value in one.given], rows)
        except Exception:  # it may refuse any NaN
            return None
        got = by_row(self.specs, list(map(comparable, made)), rows[:1])
        return self._difference([one], got, [f"{where} {_SPOILT_HOW}"])

    def changes_when_repeated(self, again: Sequence[LoneRow]) -> bool:
        """Whether the part returns something else for these rows now."""
        return self.compare_shared(SharedBatch([one], one.given, [""]) for one in again) is not None

    def _difference(self, alone: Sequence[LoneRow], got: Sequence[Sequence[Array]], how: Sequence[str]) -> str | None:
        expected = [by_row(self.specs, list(map(comparable, one.made)), [one.row])[0] for one in alone]
        return difference(self.specs, self.tolerance, expected, got, how)


def spec_of(name: str, value: torch.Tensor, axis: str = "") -> TensorSpec:
    """The spec of a tensor, rows first, for the comparison; `axis` names its second axis."""
    axes = tuple(axis if dim == 0 else "" for dim in range(value.ndim - 1))
    shape = tuple(value.shape[1:])
    return TensorSpec(name, V2_DATATYPES.get(value.dtype, "FP64"), shape, axes, shape)


def comparable(value: torch.Tensor) -> Array:
    """A tensor as an array; the real part, in double precision, for a type that V2 does not have."""
    if value.dtype not in V2_DATATYPES:
        value = (value.real if value.is_complex() else value).to(torch.float64)
    return as_array(value)


def _spoilt(value: torch.Tensor, size: int) -> torch.Tensor:
    """A row [1, ...] and copies of it, filled with NaN and infinity if its type has these."""
    batch = torch.cat([value] * size)
    if value.is_floating_point():
        for row, wrong in zip(batch[1:], _SPOILT, strict=False):
            row.fill_(wrong)
    return batch
