"""Whether a row's answer depends on its batch: rows run alone, in company, reordered and padded, and compared.

A server puts rows of different clients into one batch and pads them, and no file guarantees that a model computes each
row from that row alone.

Here are the batches to run and the comparison; `segment_check.py` runs them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from app.contract import FLOATS, Array, ModelInfo, SampleRow, TensorSpec

Run = Callable[[Sequence[SampleRow], int], Sequence[Array]]
RowOutputs = Sequence[Array]  # a row's outputs, each as long as the row itself

_LEAST_SCALE = 0.01  # smaller outputs are assumed to be rounding errors of larger numbers
_AT_ONCE_S = 0.3  # for thousands of small batches: a buffer that threads share shows in some
_NEAR_TIES = 0.25  # of integers: one row of four


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far two runs of a row may differ because batches of different sizes round differently.

    A float may differ by `relative` of itself and `absolute` of its output's largest value. Of integers and text, a
    share `flips` of an output's values may differ at all, because rounding decides near ties (an argmax, a threshold).
    If float outputs have agreed, the share is a quarter: differences are then near ties, not effects of the batch.
    """

    relative: float
    absolute: float
    flips: float


#: By the type that a model computes in, the coarsest first; TF32 counts as FP16, which has as many bits. EXACT: models
#: without floats.
TOLERANCES = {
    "BF16": Tolerance(5e-2, 5e-2, _NEAR_TIES),
    "FP16": Tolerance(1e-2, 1e-2, _NEAR_TIES),
    "FP32": Tolerance(1e-3, 1e-4, 0.01),
    "FP64": Tolerance(1e-7, 1e-8, 0.01),
    "EXACT": Tolerance(0, 0, 0),
}


class Cause(Enum):
    RANDOM = "the same rows are answered differently twice"  # and so nothing else can be compared
    COMPANY = "a row's answer depends on the other rows of its batch"
    PADDING = "a row's answer depends on how far it is padded"
    JOINS = "what a row writes depends on its company, which changes between its steps"
    AT_ONCE = "a row's answer depends on a batch that another worker runs at the same time"
    MEMORY = "a step of the cell depends on the steps that it made before, of whatever rows"


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference beyond the tolerance: `difference` names the output, both values and how the row was run."""

    cause: Cause
    difference: str

    def __str__(self) -> str:
        return f"{self.cause.value}: {self.difference}"


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to run together, by their places among the rows to check; `how` each is run, in words.

    It is filled up to `size` with copies of the last row.
    """

    places: Sequence[int]
    size: int
    how: Sequence[str]
    cause: Cause = Cause.COMPANY


def check_at_once(info: ModelInfo, rows: Sequence[SampleRow], run: Run, tolerance: Tolerance) -> Finding | None:
    """Run two rows of one length for a while, each on a thread of its own. Returns a difference from an answer alone.

    None for a model that answers a row differently anyway. Raises what `run` raises.
    """
    pair = [row for row in rows if row.lengths == rows[0].lengths][:2]

    def answer(row: SampleRow) -> list[Array]:
        return by_row(info.outputs, [np.array(value) for value in run([row], 1)], [row])[0]

    def differs(compare: Comparison, row: SampleRow) -> str | None:
        wrong = compare.difference([0], [answer(row)], ["beside another batch"])
        while wrong is None and time.perf_counter() < until_s:
            wrong = compare.difference([0], [answer(row)], ["beside another batch"])
        return wrong

    alone = [Comparison(info.outputs, tolerance, [answer(row)], "alone") for row in pair]
    until_s = 0.0
    if any(map(differs, alone, pair)):
        return None
    until_s = time.perf_counter() + _AT_ONCE_S
    with ThreadPoolExecutor(len(pair)) as threads:
        wrong = next(filter(None, threads.map(differs, alone, pair)), None)
    return None if wrong is None else Finding(Cause.AT_ONCE, wrong)


def first_finding(compare: Comparison, ran: Iterable[tuple[Batch, Sequence[RowOutputs]]]) -> Finding | None:
    """The largest difference of the first batch that has one. `ran`: batches and the answers of their rows."""
    for batch, got in ran:
        found = compare.difference(batch.places, got, batch.how)
        if found is not None:
            return Finding(batch.cause, found)
    return None


def batches_together(rows: Sequence[SampleRow], most: int) -> Iterator[Batch]:
    """Rows of one length, in another order, filled up with copies to `most`, and beside longer rows. Up to `most` rows:
    a model may compute large batches in another way, as in parts.
    """
    same = [place for place, row in enumerate(rows) if row.lengths == rows[0].lengths][: min(most, 4)]
    pair = "beside a copy of itself"
    if len(same) == 1:
        yield Batch([0, 0], 2, [pair, pair])
    else:
        company = f"in company of {len(same) - 1} other row{'s' * (len(same) > 2)}"
        yield Batch(same, len(same), [company] * len(same))
        yield Batch(same[::-1], len(same), ["in another order"] * len(same))
    filled = same if len(same) < most else same[:-1]
    yield Batch(filled, most, [f"in a batch of {most} that is filled up with copies of the last row"] * len(filled))
    shorter = [place for place, row in enumerate(rows) if row.lengths != rows[0].lengths]
    if shorter:
        mixed = [0, *shorter][:most][::-1]  # as they come: a model that sorts by length must put them back
        yield Batch(mixed, len(mixed), [padding(rows, place, mixed) for place in mixed], Cause.PADDING)


def padding(rows: Sequence[SampleRow], place: int, batch: Sequence[int]) -> str:
    """How far a batch pads a row, in words."""
    for axis, length in rows[place].lengths.items():
        longest = max(rows[other].lengths[axis] for other in batch)
        if longest > length:
            return f"padded to length {longest} (axis {axis!r}, its own length is {length})"
    return f"in company of {len(batch) - 1} shorter row{'s' * (len(batch) > 2)}"


def by_row(outputs: Sequence[TensorSpec], values: Sequence[Array], rows: Sequence[SampleRow]) -> list[list[Array]]:
    """Split a batch's outputs, these rows first: a list of arrays per row, cut to the row's own length."""
    return [
        [_cut(spec, value[position], row) for spec, value in zip(outputs, values, strict=True)]
        for position, row in enumerate(rows)
    ]


def _cut(spec: TensorSpec, value: Any, row: SampleRow) -> Array:
    """One row's output, cut to its own length; a single value becomes an array of one."""
    answer: Array = np.atleast_1d(np.asarray(value, spec.dtype))
    if spec.fixed or answer.ndim != len(spec.axes):
        return answer
    own = tuple(slice(row.lengths.get(axis)) for axis in spec.axes)
    shorter: Array = answer[own]
    return shorter


_Row = tuple[int, Array, Array, str]  # its place, an output, the same from another run, how that was run


class Comparison:
    """Compares answers with the expected ones, within a tolerance; `once` says how the expected ones were made.

    Integers that differ are counted over all batches: a near tie belongs to a row, whatever batch it shows in.
    """

    def __init__(
        self, outputs: Sequence[TensorSpec], tolerance: Tolerance, expected: Sequence[RowOutputs], once: str
    ) -> None:
        self._outputs = outputs
        self._tolerance = tolerance
        self._expected = expected
        self._once = once
        floats = [spec.datatype in FLOATS for spec in outputs]
        self._flips = max(tolerance.flips, _NEAR_TIES if any(floats) else 0)
        self._flipped = [[np.zeros(answer[index].shape, bool) for answer in expected] for index in range(len(outputs))]
        self._scales = [self._scale(index) if is_float else 0.0 for index, is_float in enumerate(floats)]

    def _scale(self, index: int) -> float:
        """The largest value of an output: rounding errors are in proportion to the summands."""
        values = np.concatenate([_numbers(self._outputs[index], answer[index]).ravel() for answer in self._expected])
        return float(np.abs(values[np.isfinite(values)]).max(initial=0))

    def difference(self, places: Sequence[int], got: Sequence[RowOutputs], how: Sequence[str]) -> str | None:
        """The largest difference, floats before integers, in words: `output 'y': 1 alone, 0.5 in company ...`."""
        order = sorted(range(len(self._outputs)), key=lambda index: self._outputs[index].datatype not in FLOATS)
        for index in order:
            spec = self._outputs[index]
            rows = [
                (place, self._expected[place][index], answer[index], done)
                for place, answer, done in zip(places, got, how, strict=True)
            ]
            compare = self._floats if spec.datatype in FLOATS else self._others
            found = self._shapes(rows) or compare(index, rows)
            if found is not None:
                return f"output {spec.name!r}: {found}"
        return None

    def _shapes(self, rows: Sequence[_Row]) -> str | None:
        for _, a, b, how in rows:
            if a.shape != b.shape:
                return f"shape {list(a.shape)} {self._once}, shape {list(b.shape)} {how}"
        return None

    def _floats(self, index: int, rows: Sequence[_Row]) -> str | None:
        spec, tolerance = self._outputs[index], self._tolerance
        worst, found = 1.0, None
        for _, first, second, how in rows:
            a, b = _numbers(spec, first), _numbers(spec, second)
            with np.errstate(all="ignore"):
                bound = tolerance.relative * np.maximum(np.abs(a), np.abs(b))
                bound += tolerance.absolute * max(self._scales[index], _LEAST_SCALE)
                excess = np.abs(a - b) / bound
            excess[~np.isfinite(a) | ~np.isfinite(b)] = np.inf
            excess[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
            if excess.max(initial=0) > worst:
                place = np.unravel_index(int(excess.argmax()), excess.shape)
                worst = float(excess[place])
                gap = f"(the largest difference, {abs(a[place] - b[place]):.4g})"
                found = f"{a[place]:.4g} {self._once}, {b[place]:.4g} {how} {gap}"
        return found

    def _others(self, index: int, rows: Sequence[_Row]) -> str | None:
        """Integers, booleans and text."""
        worst, found = 0.0, None
        for at, a, b, how in rows:
            gaps = np.asarray(a != b, float) if a.dtype == object else np.abs(a.astype(float) - b.astype(float))
            self._flipped[index][at] |= gaps > 0
            if gaps.max(initial=0) > worst:
                place = np.unravel_index(int(gaps.argmax()), gaps.shape)
                worst = float(gaps[place])
                found = f"{a[place]} {self._once}, {b[place]} {how}"
        count = sum(int(flipped.sum()) for flipped in self._flipped[index])
        values = sum(flipped.size for flipped in self._flipped[index])
        if found is None or count <= self._flips * values:
            return None
        return f"{found} (the largest difference; {count} of {values} values differ)"


def _numbers(spec: TensorSpec, values: Array) -> Array:
    """A float output in double precision. BF16 comes as its bits."""
    if spec.datatype == "BF16":
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)
