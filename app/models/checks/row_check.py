"""Whether a row's answer depends on its batch: rows run alone, in company, reordered and padded, and compared.

A server puts rows of different clients into one batch and pads them, and no file guarantees that a model computes each
row from that row alone.

Here are the batches to run and the comparison; `segment_check.py` runs them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from itertools import chain, cycle
from typing import Any

import numpy as np
import torch

from app.contract import FLOATS, Array, Model, ModelInfo, SampleRow, TensorSpec
from app.models.base import PADDED, V2_DATATYPES, networks_of, one_line, shortened, with_place

Run = Callable[[Sequence[SampleRow], int], Sequence[Array]]
RowOutputs = Sequence[Array]  # a row's outputs, each as long as the row itself

_LEAST_SCALE = 0.01  # smaller outputs are assumed to be rounding errors of larger numbers
_AT_ONCE_S = 0.5  # for a thousand small batches: what threads share shows in some
_NEAR_TIES = 0.25  # of integers: one row of four
_FLOAT = re.compile(r"-?\d+(?:\.\d+(?:e[-+]?\d+)?|e[-+]?\d+)", re.IGNORECASE)  # in a text, as in JSON


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


def tolerance_of(model: Model) -> Tolerance:
    """The tolerance of the coarsest floating-point type of inputs, outputs, weights and FP32 products."""
    tensors = (*model.info.inputs, *model.info.outputs)
    found = {"EXACT", *(spec.datatype for spec in tensors)}
    found |= {"FP32" for spec in model.info.outputs if spec.datatype == "BYTES"}  # which may hold floats, as JSON does
    weights = [weight for net in networks_of(model) for weight in chain(net.parameters(), net.buffers())]
    on_gpu = any(weight.is_cuda for weight in weights)
    found |= {V2_DATATYPES.get(weight.dtype, "BF16") for weight in weights if weight.is_floating_point()}
    if "FP32" in found:
        found.add(_float32_precision(on_gpu))
    return next(tolerance for name, tolerance in TOLERANCES.items() if name in found)


def _float32_precision(on_gpu: bool) -> str:
    """The precision of FP32 products: a model's code can lower it, and a GPU lowers it for convolutions."""
    try:
        allowed = torch.get_float32_matmul_precision()
        tf32 = on_gpu and torch.backends.cudnn.allow_tf32
    except RuntimeError:  # it was set by torch's newer switches, which cannot be read here
        return "BF16"
    return "BF16" if allowed == "medium" else "FP16" if allowed == "high" or tf32 else "FP32"


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
class TriedBatch:
    """Rows to run together, by their places among the rows to check; `how` each is run, in words."""

    places: Sequence[int]
    how: Sequence[str]
    cause: Cause = Cause.COMPANY


def check_at_once(info: ModelInfo, rows: Sequence[SampleRow], run: Run, tolerance: Tolerance) -> Finding | None:
    """Run batches for a while on two threads: rows of one length; on the other the same in another order, and one row,
    shorter if there is such, by turns. Returns a difference from an answer while no other batch runs.

    None for a model that answers a row differently anyway.
    """

    def answers(batch: Sequence[SampleRow]) -> list[list[Array]]:
        return by_row(info.outputs, [np.array(value) for value in run(batch, len(batch))], batch)

    def differs(turns: Sequence[tuple[Comparison, Sequence[SampleRow]]]) -> str | None:
        try:
            for compare, batch in cycle(turns):
                wrong = compare.difference(range(len(batch)), answers(batch), ["beside another batch"] * len(batch))
                if wrong is not None or time.perf_counter() >= until_s:
                    return wrong
        except Exception as error:  # a user's code may raise anything
            return f"beside another batch it raises {with_place(one_line(error), error)}"
        return None

    same, most = [row for row in rows if row.lengths == rows[0].lengths], info.batching.max_batch
    batches = [same[:most], [*same[1:], same[0]][:most], rows[-1:]]
    turns = [(Comparison(info.outputs, tolerance, answers(batch), "alone"), batch) for batch in batches]
    until_s = 0.0
    if any(differs([one]) for one in turns):
        return None
    until_s = time.perf_counter() + _AT_ONCE_S
    with ThreadPoolExecutor(2) as threads:  # no more than any server with several workers
        wrong = next(filter(None, threads.map(differs, (turns[:1], turns[1:]))), None)
    return None if wrong is None else Finding(Cause.AT_ONCE, wrong)


def batches_together(rows: Sequence[SampleRow], most: int) -> Iterator[TriedBatch]:
    """Rows of one length, in another order, filled up with copies to `most`, and beside longer rows. Up to `most` rows:
    a model may compute large batches in another way, as in parts.
    """
    same = [place for place, row in enumerate(rows) if row.lengths == rows[0].lengths][: min(most, 4)]
    pair = "beside a copy of itself"
    if len(same) == 1:
        yield TriedBatch([0, 0], [pair, pair])
    else:
        company = f"in company of {len(same) - 1} other row{'s' * (len(same) > 2)}"
        yield TriedBatch(same, [company] * len(same))
        three = same[2::-1]  # the axis that torch.cross takes, unless it is told one, is the first of length 3
        yield TriedBatch(three, [f"in a batch of {len(three)} in another order"] * len(three))
    filled = same if len(same) < most else same[:-1]
    filled = [*filled, *[filled[-1]] * (most - len(filled))]
    yield TriedBatch(filled, [f"in a batch of {most} that is filled up with copies of the last row"] * most)
    shorter = [place for place, row in enumerate(rows) if row.lengths != rows[0].lengths]
    if shorter:
        mixed = [0, *shorter][:most][::-1]  # as they come: a model that sorts by length must put them back
        yield TriedBatch(mixed, [padding(rows, place, mixed) for place in mixed], Cause.PADDING)


def padding(rows: Sequence[SampleRow], place: int, batch: Sequence[int]) -> str:
    """How far a batch pads a row, in words."""
    for axis, length in rows[place].lengths.items():
        longest = max(rows[other].lengths[axis] for other in batch)
        if longest > length:
            return f"padded to length {longest} (axis {axis!r}, its own length is {length})"
    return f"in company of {len(batch) - 1} shorter row{'s' * (len(batch) > 2)}"


def by_row(outputs: Sequence[TensorSpec], values: Sequence[Any], rows: Sequence[SampleRow]) -> list[list[Array]]:
    """Split a batch's outputs, these rows first: a list of arrays per row, cut to the row's own length."""
    arrays = [_array(value) for value in values]
    return [
        [_cut(spec, array[position], row) for spec, array in zip(outputs, arrays, strict=True)]
        for position, row in enumerate(rows)
    ]


def _array(value: torch.Tensor | Array) -> Array:
    """A tensor as an array, BF16 as its bits; the real part, in double precision, for a type that V2 does not have."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.dtype not in V2_DATATYPES:
        value = (value.real if value.is_complex() else value).to(torch.float64)
    array: Array = (value.view(torch.uint16) if value.dtype == torch.bfloat16 else value).numpy(force=True)
    return array


def _cut(spec: TensorSpec, value: Any, row: SampleRow) -> Array:
    """One row's output, cut to its own length; a single value becomes an array of one. Shares memory, but for BF16."""
    answer: Array = np.atleast_1d(np.asarray(value, spec.dtype))
    if not spec.fixed and answer.ndim == len(spec.axes):
        answer = answer[tuple(slice(row.lengths.get(axis)) for axis in spec.axes)]
    return (answer.astype(np.uint32) << 16).view(np.float32) if spec.datatype == "BF16" else answer


def _doubled(value: Array) -> Array:
    """Floats in double precision."""
    return value.astype(np.float64) if value.dtype.kind == "f" else value


class Comparison:
    """Compares answers with the expected ones, within a tolerance; `once` says how the expected ones were made.

    Integers that differ are counted over all batches: a near tie belongs to a row, whatever batch it shows in.
    """

    def __init__(
        self, outputs: Sequence[TensorSpec], tolerance: Tolerance, expected: Sequence[RowOutputs], once: str
    ) -> None:
        self._tolerance, self._once = tolerance, once
        self._expected = [list(map(_doubled, answer)) for answer in expected]
        #: The outputs with their numbers, floats first.
        self._outputs = sorted(enumerate(outputs), key=lambda each: each[1].datatype not in FLOATS)
        has_floats = any(spec.datatype in FLOATS for spec in outputs)
        self._flips = max(tolerance.flips, _NEAR_TIES if has_floats else 0)
        self._flipped = [[np.zeros(value.shape, bool) for value in answer] for answer in expected]

    def difference(self, places: Sequence[int], got: Sequence[RowOutputs], how: Sequence[str]) -> str | None:
        """The largest difference, floats before integers, in words: `output 'y': 1 alone, 0.5 in company ...`."""
        for index, spec in self._outputs:
            is_float = spec.datatype in FLOATS
            scale = self._scale(index) if is_float else 0.0
            worst, found = float(is_float), None  # a float may differ by its tolerance, 1
            for place, answer, done in zip(places, got, how, strict=True):
                a, b = self._expected[place][index], _doubled(answer[index])  # row by row: all take much memory
                if a.shape != b.shape:
                    shapes = f"shape {list(a.shape)} {self._once}, shape {list(b.shape)} {done}"
                    return f"output {spec.name!r}: {shapes}; {PADDED}"
                gaps = self._in_tolerances(a, b, scale) if is_float else self._gaps(a, b)
                self._flipped[place][index] |= gaps > 0
                if gaps.max(initial=0) > worst:
                    at = np.unravel_index(int(gaps.argmax()), gaps.shape)
                    worst, found = float(gaps[at]), (a[at], b[at], done)
            if found is not None and (text := self._told(index, is_float, *found)):
                return shortened(f"output {spec.name!r}: {text}")
        return None

    def _told(self, index: int, is_float: bool, one: Any, other: Any, how: str) -> str:
        """The two values, in words; "" for integers, booleans and text of which so few differ as by near ties."""
        if is_float:
            gap = f"(the largest difference, {abs(one - other):.4g})"
            return f"{one:.4g} {self._once}, {other:.4g} {how} {gap}"
        flipped = np.concatenate([answer[index].ravel() for answer in self._flipped])
        count = int(flipped.sum())
        if count <= self._flips * flipped.size:
            return ""
        differ = f"(the largest difference; {count} of {flipped.size} values differ)"
        return f"{one} {self._once}, {other} {how} {differ}"

    def _scale(self, index: int) -> float:
        """The largest value of an output: rounding errors are in proportion to the summands."""
        values = np.concatenate([answer[index].ravel() for answer in self._expected])
        return max(_LEAST_SCALE, float(np.abs(values[np.isfinite(values)]).max(initial=0)))

    def _in_tolerances(self, a: Array, b: Array, scale: float) -> Array:
        """How far floats differ, as multiples of what they may."""
        with np.errstate(all="ignore"):
            bound = self._tolerance.relative * np.maximum(np.abs(a), np.abs(b)) + self._tolerance.absolute * scale
            found: Array = np.abs(a - b) / bound
        found[~np.isfinite(a) | ~np.isfinite(b)] = np.inf
        found[(a == b) | (np.isnan(a) & np.isnan(b))] = 0
        return found

    def _gaps(self, a: Array, b: Array) -> Array:
        of_texts = a.dtype == object
        return np.asarray(np.frompyfunc(self._differ, 2, 1)(a, b) if of_texts else abs(a.astype(float) - b), float)

    def _differ(self, one: Any, other: Any) -> bool:
        """Whether texts differ in more than their floats, or these in more than their rounding."""
        if one == other:
            return False
        texts = [each.decode("latin-1") if isinstance(each, bytes) else str(each) for each in (one, other)]
        a, b = (np.array(_FLOAT.findall(text), float) for text in texts)
        same = _FLOAT.sub("0.", texts[0]) == _FLOAT.sub("0.", texts[1])
        scale = min(1.0, np.abs(a).max(initial=0))  # beside a time or pixels a score is no rounding error
        return not same or bool((self._in_tolerances(a, b, scale) > 1).any())
