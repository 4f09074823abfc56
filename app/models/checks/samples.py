"""Rows to try a model with before the first request, and batches of them.

Warm-up uses one row of plain values (ones, empty text), which are valid for most models. The row check uses different
rows. Both respect the bounds in model.toml; if made-up values are no valid input, `[warmup]` in model.toml gives real
rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from math import prod
from typing import Any

import numpy as np
import torch

from app.contract import Array, Model, ModelInfo, SampleRow, TensorSpec, axis_bounds, is_integer
from app.models.base import stacked, stored, to_bits, with_server_inputs

ROWS = 4  # for the row check: enough to reorder, few enough to be cheap
_SHORT = 16  # of variable axes: long enough for most kernels, and an encoder runs it in milliseconds
_LONGER = 8  # times the length of the given rows, for axes without bound
_ATTEMPTS = 8  # to draw a row that differs from those before it; some inputs have only two values
_LETTERS = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz", np.uint8)
_LONGEST_WORD = 8


def full_lengths(inputs: Sequence[TensorSpec]) -> dict[str, int]:
    """Each variable axis at its bound, or at a short length if it has none."""
    return {axis: bound or _SHORT for axis, bound in axis_bounds(inputs).items()}


def short_lengths(inputs: Sequence[TensorSpec], length: int = _SHORT) -> dict[str, int]:
    """Each variable axis at `length`, or at its bound where that is less."""
    return {axis: min(bound or length, length) for axis, bound in axis_bounds(inputs).items()}


def most_length(inputs: Sequence[TensorSpec], own: int) -> int:
    """The largest length of rows, 0 without a variable axis; without a bound several times their `own` length."""
    return max((bound or own * _LONGER for bound in axis_bounds(inputs).values()), default=0)


def longest(rows: Sequence[SampleRow]) -> dict[str, int]:
    """The length of each variable axis in a batch of these rows."""
    return {axis: max(row.lengths[axis] for row in rows) for axis in rows[0].lengths}


def example_row(inputs: Sequence[TensorSpec], lengths: Mapping[str, int] | None = None) -> SampleRow:
    """The plain row: all values of an input are its example. Axes that `lengths` does not name are at their bounds."""
    lengths = {**full_lengths(inputs), **(lengths or {})}
    return SampleRow(tuple(_plain(spec, lengths, spec.example) for spec in inputs), lengths)


def _plain(spec: TensorSpec, lengths: Mapping[str, int], value: float) -> Array:
    return np.full(spec.row_shape(lengths), stored(spec, value), spec.dtype)


def made_up_rows(
    inputs: Sequence[TensorSpec], lengths: Sequence[Mapping[str, int]], seed: int = 0, *, twos: bool = False,
    alike: bool = False,
) -> list[SampleRow]:  # fmt: skip
    """A row for each of `lengths`, of values that differ from row to row. Equal seeds give equal rows.

    Floats are drawn from the standard normal distribution, but for each fourth row from 0 to 1: a model may branch by
    its images' largest value, and must do so by row. Rows behind the fourth, which are shorter, have one sign. The
    first row's text is a word, the second's two words, and so on: a model may pad to the most. Integers are between the
    input's `minimum` and `maximum`. Without these bounds they are 0 or 1: any larger number could be an index out of
    range. One integer beside other inputs is 1; of `twos`, 2 in each second row. `alike`: all floats are normal, and
    all texts words, which a model may expect.
    """
    random = np.random.default_rng(seed)
    plain = [_keeps_to_ones(spec, inputs) for spec in inputs]
    rows: list[SampleRow] = []
    seen: set[tuple[Any, ...]] = set()
    for number, of_row in enumerate(lengths, 1):
        for _ in range(_ATTEMPTS):
            arrays = (
                _plain(spec, of_row, spec.example + (twos and number % 2 == 0 and _is_bare_integer(spec)))
                if ones
                else _draw(spec, spec.row_shape(of_row), random, 1 if alike else number)
                for spec, ones in zip(inputs, plain, strict=True)
            )
            row = SampleRow(tuple(arrays), dict(of_row))
            if (content := content_of(row)) not in seen:
                break
        seen.add(content)
        rows.append(row)
    return rows


def trial_rows(inputs: Sequence[TensorSpec], longer: Callable[[], bool]) -> Iterator[SampleRow]:
    """Rows to try a model with until it takes one: a plain row and a made-up one, both short, and if `longer` says so
    the plain row at full length: the others may be too short, as for a convolution.
    """
    short = short_lengths(inputs)
    yield from (example_row(inputs, short), *made_up_rows(inputs, [short]))
    if full_lengths(inputs) != short and longer():
        yield example_row(inputs)


def row_check_rows(
    info: ModelInfo, samples: Sequence[SampleRow] = (), *, long: bool = False, **kind: bool
) -> list[SampleRow]:
    """Rows for the row check that may share a batch: made-up ones, as long as the inputs may be if `long`, or samples.
    `kind`: see `made_up_rows`.

    The first have the longest length; with a variable axis, the last is shorter if there is such a row.
    """
    ends = info.batching.length_buckets
    if not samples:
        return made_up_rows(info.client_inputs, _lengths(full_lengths(info.client_inputs), ends, long), **kind)
    groups: dict[int, list[SampleRow]] = {}
    for row in samples:
        groups.setdefault(_bucket(row.lengths, ends), []).append(row)
    most = max(groups.values(), key=len)
    rows = sorted(most, key=lambda row: -sum(row.lengths.values()))
    return [*rows[: ROWS + 1], *rows[ROWS + 1 :][-1:]]


def _lengths(bounds: Mapping[str, int], ends: Sequence[int], long: bool) -> list[dict[str, int]]:
    """The lengths of made-up rows: ROWS equal ones, then shorter ones. Only lengths that may share a batch.

    `long`: the bounds, and three quarters of them.
    """
    less, more = _span(max(bounds.values(), default=1), ends)
    same = bounds if long else {axis: min(bound, more) for axis, bound in bounds.items()}
    short = {axis: max(1, bound * 3 // 4) if long else min(bound, less) for axis, bound in bounds.items()}
    shorter = [short, *({**same, axis: length} for axis, length in list(short.items())[:2])]
    allowed = [one for one in shorter if one != same and _bucket(one, ends) == _bucket(same, ends)]
    return [*[dict(same)] * ROWS, *allowed]


def _span(bound: int, ends: Sequence[int]) -> tuple[int, int]:
    """Two lengths up to `bound` of one bucket, 8 and 16 if possible; one length twice if no bucket has two."""
    lows, highs = [1, *(end + 1 for end in ends)], [min(end, bound) for end in (*ends, bound)]
    spans = [(low, high) for low, high in zip(lows, highs, strict=True) if low < high]
    if not spans:
        return min(bound, _SHORT), min(bound, _SHORT)
    low, high = next((span for span in spans if span[1] >= min(bound, _SHORT)), spans[-1])
    long = min(high, max(_SHORT, low + 1))
    return max(low, long // 2), long


def _bucket(lengths: Mapping[str, int], ends: Sequence[int]) -> int:
    return bisect_left(ends, max(lengths.values(), default=0)) if ends else 0


def stretched(inputs: Sequence[TensorSpec], row: SampleRow, lengths: Mapping[str, int]) -> SampleRow:
    """The row with its variable axes at other lengths: its own values repeated, or cut."""
    arrays = []
    for spec, values in zip(inputs, row.arrays, strict=True):
        for dim, axis in enumerate(spec.axes):
            if axis:
                values = np.take(values, np.arange(lengths[axis]) % values.shape[dim], axis=dim)
        arrays.append(values)
    return SampleRow(tuple(arrays), dict(lengths), row.parameters)


def rows_of(model: Model, lengths: Mapping[str, int]) -> list[SampleRow]:
    """Rows of these lengths: the samples, or made-up ones."""
    inputs = model.info.client_inputs
    if model.checks.samples:
        return [stretched(inputs, row, lengths) for row in model.checks.samples]
    return made_up_rows(inputs, [lengths] * ROWS)


def beside_longer(info: ModelInfo, row: SampleRow, *, shortest: bool) -> list[tuple[SampleRow, SampleRow]]:
    """Rows, each with a longer one to run it beside: the row with itself at full length, unless that has more values
    than the largest batch of such rows, which would take long; if `shortest`, itself at length 1 with the row. Only
    such as may share a batch.
    """
    inputs, ends, most = info.client_inputs, info.batching.length_buckets, info.batching.max_batch
    longer = stretched(inputs, row, full_lengths(inputs))
    pairs = [(row, longer)] * (2 * _values(longer) <= most * _values(row))
    pairs += [(stretched(inputs, row, short_lengths(inputs, 1)), row)] * shortest
    kinds = ((one, other, _bucket(one.lengths, ends) == _bucket(other.lengths, ends)) for one, other in pairs)
    return [(one, other) for one, other, alike in kinds if alike and one.lengths != other.lengths and most > 1]


def _values(row: SampleRow) -> int:
    return sum(array.size for array in row.arrays)


def stack(
    inputs: Sequence[TensorSpec], rows: Sequence[SampleRow], size: int | None = None
) -> list[torch.Tensor | Array]:
    """The rows as a batch of `size`, a tensor per input (BYTES: an object array): what a model is called with.

    As in the engine, shorter rows are padded with the input's pad value, and missing rows repeat the last. `inputs`
    are all of the model's; rows have only those that clients send.
    """
    padded = [*rows, *[rows[-1]] * ((size or len(rows)) - len(rows))]
    sent = [spec for spec in inputs if not spec.made]
    batch = [stacked([row.arrays[index] for row in padded], spec) for index, spec in enumerate(sent)]
    of_rows = {axis: torch.tensor([row.lengths[axis] for row in padded]) for axis in rows[0].lengths}
    return with_server_inputs(inputs, batch, of_rows, longest(rows))


class AskedParameters(dict[str, Any]):
    """The parameters of a row, which know what they have been asked for."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.asked: set[Any] = set()

    def __deepcopy__(self, memo: object) -> AskedParameters:
        return self

    def __contains__(self, name: object) -> bool:
        self.asked.add(name)
        return super().__contains__(name)

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)


def keywords(model: Model, rows: Sequence[SampleRow], size: int) -> dict[str, Any]:
    """The keywords of a call beside `stack`: the parameters of each row, if the model takes them."""
    padded = [*rows, *[rows[-1]] * (size - len(rows))]
    return {"parameters": [deepcopy(row.parameters) for row in padded]} if model.takes_parameters else {}


def _keeps_to_ones(spec: TensorSpec, inputs: Sequence[TensorSpec]) -> bool:
    """Whether only ones are sure to be valid: for a mask, or one integer without bounds beside other inputs.

    Callers send no masks with holes, and a length of 0 makes a recurrent layer raise.
    """
    if "mask" in spec.name.lower():
        return True
    others = [other for other in inputs if other is not spec]
    if _is_flag(spec) and any(axis for axis in spec.axes):
        return any(set(filter(None, spec.axes)) & set(other.axes) and not _is_flag(other) for other in others)
    return _is_bare_integer(spec) and any(not _is_bare_integer(other) and not _is_flag(other) for other in others)


def _is_flag(spec: TensorSpec) -> bool:
    return spec.datatype == "BOOL" or (spec.minimum, spec.maximum) == (0, 1)


def _is_bare_integer(spec: TensorSpec) -> bool:
    return is_integer(spec.datatype) and not spec.ranged and spec.fixed and spec.count == 1


def _draw(spec: TensorSpec, shape: tuple[int, ...], random: np.random.Generator, number: int) -> Array:
    """Values of the row of this number."""
    if spec.datatype == "BYTES":
        lengths = random.integers(1, _LONGEST_WORD, (prod(shape), number), endpoint=True)
        texts = [b" ".join(random.choice(_LETTERS, length).tobytes() for length in words) for words in lengths]
        return np.array(texts, object).reshape(shape)
    if not is_integer(spec.datatype) and spec.datatype != "BOOL":
        normal = np.asarray(random.standard_normal(shape, np.float32), np.float32)
        floats = normal if number % ROWS else np.abs(normal) % 1
        if number > ROWS:  # the shorter ones: a maximum over padding shows in rows without positive values
            floats = np.copysign(normal, -1 if number % 2 else 1)
        return to_bits(floats) if spec.datatype == "BF16" else floats.astype(spec.dtype)
    low, high = _range(spec)
    wide = np.int64 if low < 0 else np.uint64
    drawn: Array = np.asarray(random.integers(low, high, shape, wide, endpoint=True), wide)
    if (low, high) == (0, 1) and drawn.size > 1:
        drawn.reshape(-1)[0] = 1  # it may be a mask: all zeros would leave nothing
    return drawn.astype(spec.dtype)


def _range(spec: TensorSpec) -> tuple[int, int]:
    """The least and the largest value to draw."""
    if spec.datatype == "BOOL":
        return 0, 1
    limits = np.iinfo(spec.dtype)
    low, high = spec.minimum, spec.maximum
    if low is None:
        return (0, 1) if high is None else (max(int(limits.min), min(0, high - 1)), high)
    return low, min(int(limits.max), low + 1) if high is None else high


def content_of(row: SampleRow) -> tuple[Any, ...]:
    """Equal for rows of equal values and shapes."""
    return tuple(
        (values.shape, tuple(values.flat) if values.dtype == object else values.tobytes()) for values in row.arrays
    )
