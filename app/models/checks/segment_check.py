"""Whether rows are independent in a segment: a whole model, a stage, a step of a cell or of a decoder. The one check
of all of them.

Rows run a segment alone, and what it took and made is kept. Then several run it together on what each had alone, so
that rounding errors do not accumulate: in company, reordered, padded, beside rows that have joined at other steps.
Last, a row runs beside copies of it that hold NaN and infinity, which must not spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from app.contract import Array, SampleRow, TensorSpec
from app.models.base import V2_DATATYPES
from app.models.checks.row_check import Cause, Comparison, Finding, Tolerance, TriedBatch, by_row

_SPOILT = (torch.nan, torch.inf)
_SPOILT_HOW = "with NaN and infinity in the place of its neighbours"

Tensors = Sequence[Any]  # of a whole model arrays
TriedResult = tuple[TriedBatch, list[list[Array]]]  # and the results of its rows


@dataclass(frozen=True, slots=True)
class LoneRow:
    """What a segment took and made for one row alone, tensors [1, ...], and in words where: "at step 3"."""

    row: SampleRow
    given: Tensors
    made: Tensors
    where: str = ""


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, whose results `specs` describe. Rows ran it as `once` says, and `run` runs some of them together.

    `batches`: of places in `lone`. `beside_nan`: places of rows that run beside others of NaN. `again`: runs a row
    alone once more; if a row then differs, it does so whatever its company, for `changes`.
    """

    specs: Sequence[TensorSpec]
    lone: Sequence[LoneRow]
    run: Callable[[Sequence[LoneRow]], Tensors]
    batches: Sequence[TriedBatch] = ()
    beside_nan: Sequence[int] = ()
    again: Callable[[LoneRow], Tensors] | None = None
    changes: Cause = Cause.RANDOM
    once: str = "alone"


def check_segments(segments: Iterable[Segment], tolerance: Tolerance, most: int) -> Finding | None:
    """The largest difference in the first batch that has one, in words; None within `tolerance`.

    `most`: the most rows of a batch. Raises what a segment raises.
    """
    for segment in segments:
        alone = [_by_row(segment, one.made, [one])[0] for one in segment.lone]
        compare = Comparison(segment.specs, tolerance, alone, segment.once)
        found = _first_finding(compare, _together(segment))
        for place in () if found else segment.beside_nan:
            # by itself: a share of the integers of all rows may differ, as by near ties
            by_itself = Comparison(segment.specs, tolerance, [alone[place]], segment.once)
            found = found or _first_finding(by_itself, _beside_nan(segment, segment.lone[place], most))
        if found and segment.again is not None:
            again = [_by_row(segment, segment.again(one), [one])[0] for one in segment.lone]
            if compare.difference(range(len(again)), again, ["again"] * len(again)):
                return Finding(segment.changes, found.difference)
        if found:
            return found
    return None


def _first_finding(compare: Comparison, ran: Iterable[TriedResult]) -> Finding | None:
    """The largest difference of the first batch that has one."""
    for batch, got in ran:
        wrong = compare.difference(batch.places, got, batch.how)
        if wrong is not None:
            return Finding(batch.cause, wrong)
    return None


def _together(segment: Segment) -> Iterator[TriedResult]:
    """The batches of a segment."""
    for batch in segment.batches:
        rows = [segment.lone[place] for place in batch.places]
        yield batch, _by_row(segment, segment.run(rows), rows)


def _beside_nan(segment: Segment, one: LoneRow, most: int) -> Iterator[TriedResult]:
    """The row beside some that hold NaN and infinity, unless it refuses these."""
    spoilt = [_filled(one, wrong) for wrong in _SPOILT[: most - 1]]
    with suppress(Exception):
        made = segment.run([one, *spoilt])
        yield TriedBatch([0], [f"{one.where} {_SPOILT_HOW}"]), _by_row(segment, made, [one])


def _by_row(segment: Segment, values: Tensors, rows: Sequence[LoneRow]) -> list[list[Array]]:
    return by_row(segment.specs, values, [one.row for one in rows])


def beside(lone: Sequence[LoneRow], places: Sequence[int], cause: Cause = Cause.COMPANY) -> TriedBatch:
    """These rows as a batch; in words, beside rows at which steps each of them is."""
    how = []
    for at, place in enumerate(places):
        others = dict.fromkeys(lone[other].where for other in (*places[:at], *places[at + 1 :]))
        rows = "a row" if len(places) == 2 else "rows"
        how.append(f"{lone[place].where} beside {rows} {' and '.join(others)}")
    return TriedBatch(places, how, cause)


def spec_of(name: str, value: torch.Tensor, axis: str = "") -> TensorSpec:
    """The spec of a tensor, rows first, for the comparison; `axis` names its second axis."""
    axes = tuple(axis if dim == 0 else "" for dim in range(value.ndim - 1))
    shape = tuple(value.shape[1:])
    return TensorSpec(name, V2_DATATYPES.get(value.dtype, "FP64"), shape, axes, shape)


def _filled(one: LoneRow, wrong: float) -> LoneRow:
    """The row with this in the place of every float."""
    arrays = tuple(np.full_like(each, wrong) if each.dtype.kind == "f" else each for each in one.row.arrays)
    given = [torch.full_like(each, wrong) if each.is_floating_point() else each for each in one.given]
    return replace(one, row=replace(one.row, arrays=arrays), given=given)
