"""Whether rows are independent in a segment of a model, where a batch may change: between two stages, and between two
steps of a cell or a decoder. The one check of all of them.

Rows run a segment alone, and what it took and made is kept. Then several run it together on what each had alone, so
that rounding errors do not accumulate: in company, reordered, padded, beside rows that have joined at other steps.
Last, one row runs beside copies of it that hold NaN and infinity, which must not spread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import torch

from app.contract import Array, SampleRow, TensorSpec
from app.models.base import V2_DATATYPES, as_array
from app.models.checks.row_check import Cause, Finding, Tolerance, by_row, difference

_SPOILT = (torch.nan, torch.inf)
_SPOILT_HOW = "with NaN and infinity in the place of its neighbours"

Tensors = Sequence[torch.Tensor]
#: Takes the tensors of some rows, which it must not change, and returns others.
RunSegment = Callable[[Tensors, Sequence[SampleRow]], Tensors]


@dataclass(frozen=True, slots=True)
class LoneRow:
    """The tensors [1, ...] that a segment takes and makes for one row alone."""

    row: SampleRow
    given: Tensors
    made: Tensors


@dataclass(frozen=True, slots=True)
class Shared:
    """Rows in one batch: what it makes of them, in words how each is run, and why a row may differ there."""

    rows: Sequence[LoneRow]
    run: Callable[[], Tensors]
    how: Sequence[str]
    cause: Cause = Cause.COMPANY


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment, of what `specs` describe. Rows ran it as `once` says, and now run it in `shared` batches.

    `again`: batches that tell, where a row differs, that it does so whatever its company: for `changes`. `lone`: rows
    that `run` runs beside others of NaN, and their places in words.
    """

    specs: Sequence[TensorSpec]
    shared: Iterable[Shared] = ()
    again: Sequence[Shared] = ()
    changes: Cause = Cause.RANDOM
    run: RunSegment | None = None
    lone: Sequence[tuple[LoneRow, str]] = ()
    once: str = "alone"


def check_segments(segments: Iterable[Segment], tolerance: Tolerance, most: int) -> Finding | None:
    """The largest difference in the first segment and kind of batch that has one, in words; None within `tolerance`.

    `most`: the most rows of a batch. Raises what a segment raises.
    """
    for segment in segments:
        found = next(_findings(segment, tolerance, most), None)
        if found is not None:
            changes = segment.again and _difference(segment, tolerance, segment.again) is not None
            return Finding(segment.changes, found.difference) if changes else found
    return None


def _findings(segment: Segment, tolerance: Tolerance, most: int) -> Iterator[Finding]:
    for cause, batches in groupby(segment.shared, attrgetter("cause")):
        if found := _difference(segment, tolerance, batches):
            yield Finding(cause, found)
    for one, where in segment.lone:
        if found := _beside_nan(segment, tolerance, one, where, most):
            yield Finding(Cause.COMPANY, found)


def _difference(segment: Segment, tolerance: Tolerance, batches: Iterable[Shared]) -> str | None:
    expected: list[list[Array]] = []
    got: list[list[Array]] = []
    how: list[str] = []
    for batch in batches:
        got += _by_row(segment.specs, batch.run(), [one.row for one in batch.rows])
        for one in batch.rows:
            expected += _by_row(segment.specs, one.made, [one.row])
        how += batch.how
    return difference(segment.specs, tolerance, expected, got, how, segment.once) if got else None


def _beside_nan(segment: Segment, tolerance: Tolerance, one: LoneRow, where: str, most: int) -> str | None:
    """The largest difference of a row whose neighbours hold NaN and infinity."""
    if segment.run is None or not any(value.is_floating_point() for value in one.given):
        return None
    rows = [one.row] * min(1 + len(_SPOILT), most)
    try:
        made = segment.run([_spoilt(value, len(rows)) for value in one.given], rows)
    except Exception:  # it may refuse any NaN
        return None
    return _difference(segment, tolerance, [Shared([one], lambda: made, [f"{where} {_SPOILT_HOW}"])])


def alone_again(run: RunSegment, rows: Sequence[LoneRow]) -> list[Shared]:
    """Each of these rows alone once more."""

    def once_more(one: LoneRow) -> Callable[[], Tensors]:
        return lambda: run(one.given, [one.row])

    return [Shared([one], once_more(one), [""]) for one in rows]


def spec_of(name: str, value: torch.Tensor, axis: str = "") -> TensorSpec:
    """The spec of a tensor, rows first, for the comparison; `axis` names its second axis."""
    axes = tuple(axis if dim == 0 else "" for dim in range(value.ndim - 1))
    shape = tuple(value.shape[1:])
    return TensorSpec(name, V2_DATATYPES.get(value.dtype, "FP64"), shape, axes, shape)


def _by_row(specs: Sequence[TensorSpec], values: Tensors, rows: Sequence[SampleRow]) -> list[list[Array]]:
    return by_row(specs, list(map(_comparable, values)), rows)


def _comparable(value: torch.Tensor) -> Array:
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
