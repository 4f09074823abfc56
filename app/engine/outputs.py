"""Tracks which batches hold the outputs of a call's rows, and joins them into the answer.

The times of a row are added up over all its units; the rest of the time it has waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from app.contract import Array, FinishedBatch, ModelInfo, Times
from app.engine.executor import Ran
from app.scheduler.types import Row, Unit
from app.values.arrays import joined_rows

#: Of a call: for each row that has run, its last batch and its position in that.
RowPlaces = list[tuple[FinishedBatch, int] | None]


def note_rows(unit: Unit, ran: Ran, ended: int, times: Times, over: Sequence[int]) -> list[FinishedBatch]:
    """Record a unit of some stages or steps. Rows at the positions `over` have ended. Returns the batches of those.

    Rows that have taken the same time so far share one FinishedBatch.
    """
    positions = {position: place for place, position in enumerate(over)}
    batches: dict[tuple[Times, bool], FinishedBatch] = {}
    for position, row in enumerate(unit.rows):
        places: RowPlaces = row.call.places  # type: ignore[attr-defined]  # of a lease
        before, ends = places[row.index], position in positions
        total = _sum(before[0].times, times) if before else times
        batch = batches.get((total, ends))
        if batch is None:
            outputs = ran.outputs if ends else []
            batch = FinishedBatch(outputs, ended, total, len(unit.rows), unit.worker, unit.reason)
            batches[total, ends] = batch
        places[row.index] = (batch, positions.get(position, position))
    return [batch for (_, ends), batch in batches.items() if ends]


def split_by_length(rows: Sequence[Row], info: ModelInfo, outputs: Sequence[Array], lengths: Array) -> None:
    """Give rows that ended after different numbers of steps outputs of their own, cut to their lengths.

    `outputs`: of the batch. `lengths` [rows]: the steps of each row.
    """
    own = [info.has_own_length(spec) for spec in info.outputs]
    for position, (row, length) in enumerate(zip(rows, lengths.tolist(), strict=True)):
        places: list[tuple[FinishedBatch, int]] = row.call.places  # type: ignore[attr-defined]  # see `note_rows`
        batch, _ = places[row.index]
        alone = slice(position, position + 1)
        cut = [values[alone, :length] if is_own else values[alone] for values, is_own in zip(outputs, own, strict=True)]
        own_batch = FinishedBatch(cut, batch.ended, batch.times, batch.size, batch.worker, batch.reason)
        places[row.index] = (own_batch, 0)


def joined(
    runs: Sequence[tuple[FinishedBatch, int, int]], info: ModelInfo, lengths: Mapping[str, int], *, differ: bool
) -> tuple[list[Array], list[int] | None]:
    """The outputs of a call's rows in order, from all batches that they ran in, and Answer.lengths.

    `runs`: where they are, see `neighbours`. `lengths`: of the call's variable axes; outputs are cut to these, because
    the batch may have been longer. `differ`: rows of the call have different lengths; they are padded with zeros.
    """
    pieces = [
        [
            _cut_back(array[first:end], spec.axes, lengths)
            for spec, array in zip(info.outputs, batch.arrays, strict=True)
        ]
        for batch, first, end in runs
    ]
    outputs: list[Array] = []
    own_lengths: list[int] | None = None
    for spec, parts in zip(info.outputs, zip(*pieces, strict=True), strict=True):
        own = info.has_own_length(spec)
        if own:
            own_lengths = [part.shape[1] for part in parts for _ in part]
        if own or differ or len(parts) == 1:
            outputs.append(joined_rows(parts))
        else:
            outputs.append(np.concatenate(parts))  # which refuses arrays that do not fit together
    return outputs, own_lengths


def _cut_back(values: Array, axes: Sequence[str], lengths: Mapping[str, int]) -> Array:
    if not lengths:
        return values
    index: list[Any] = [slice(None), *(slice(lengths.get(axis)) if axis else slice(None) for axis in axes)]
    cut: Array = values[tuple(index)]
    return cut


def _sum(one: Times, other: Times) -> Times:
    return (one[0] + other[0], one[1] + other[1], one[2] + other[2])
