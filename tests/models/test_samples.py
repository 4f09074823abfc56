"""Invariant: rows made up for a model keep to what its inputs declare, and equal seeds give equal rows."""

from __future__ import annotations

import numpy as np
import pytest

from app.contract import DATATYPES, UNBOUNDED, Batching, ModelInfo, SampleRow, TensorSpec
from app.models.checks.samples import (
    ROWS,
    example_row,
    made_up_rows,
    row_check_rows,
    short_lengths,
    stack,
)


def spec(name: str, datatype: str, *shape: int | str, bound: int = 128, **options) -> TensorSpec:
    axes = tuple(axis if isinstance(axis, str) else "" for axis in shape)
    lengths = tuple(-1 if isinstance(axis, str) else axis for axis in shape)
    bounds = tuple(bound if isinstance(axis, str) else axis for axis in shape)
    return TensorSpec(name, datatype, lengths, axes, bounds, **options)


def info(*inputs: TensorSpec, **batching) -> ModelInfo:
    return ModelInfo("m", "1", "pytorch", inputs, (), Batching(**batching))


def made(*inputs: TensorSpec, rows: int = 4, seed: int = 0) -> list[SampleRow]:
    return made_up_rows(inputs, [short_lengths(inputs)] * rows, seed)


def values(rows: list[SampleRow], index: int = 0) -> list[list[object]]:
    return [row.arrays[index].ravel().tolist() for row in rows]


@pytest.mark.parametrize("datatype", DATATYPES)
def test_rows_have_the_declared_dtype_and_shape_and_differ(datatype: str) -> None:
    rows = made(spec("x", datatype, "n", 5))
    for row in rows:
        (array,) = row.arrays
        assert (array.dtype, array.shape, row.lengths) == (DATATYPES[datatype], (16, 5), {"n": 16})
    assert len({repr(one) for one in values(rows)}) == len(rows)
    assert values(rows) == values(made(spec("x", datatype, "n", 5)))
    assert values(rows) != values(made(spec("x", datatype, "n", 5), seed=1))


def drawn(*inputs: TensorSpec, index: int = 0) -> set[object]:
    return {value for one in values(made(*inputs), index) for value in one}


@pytest.mark.parametrize(
    ("datatype", "categories"), [("BYTES", (b"Bonn", b"Ulm")), ("FP32", (0.5, 2)), ("INT8", (3, -7))]
)
@pytest.mark.parametrize("shape", [(), (3,)])
def test_values_keep_to_categories(datatype: str, categories: tuple[object, ...], shape: tuple[int, ...]) -> None:
    one = spec("x", datatype, *shape, categories=categories)
    assert drawn(one) == set(categories)
    (plain,) = example_row([one]).arrays
    assert (plain.shape, plain.dtype, {*plain.ravel().tolist()}) == (shape, one.dtype, {categories[0]})


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if "INT" in name])
def test_integers_keep_to_their_bounds(datatype: str) -> None:
    limits = np.iinfo(DATATYPES[datatype])
    low, high = int(limits.min), int(limits.max)
    for bounds, expected in (
        ((None, None), {0, 1}),  # valid as any index
        ((high, None), {high}),
        ((None, low), {low}),
        ((high - 3, high), set(range(high - 3, high + 1))),
        ((5, None), {5, 6}),
        ((None, 3), {0, 1, 2, 3}),
    ):
        assert drawn(spec("x", datatype, 50, minimum=bounds[0], maximum=bounds[1])) == expected
    if low < 0:
        assert drawn(spec("x", datatype, 50, maximum=-5)) == {-6, -5}


@pytest.mark.parametrize(
    "mask",
    [
        spec("attention_mask", "FP32", "tokens"),
        spec("m", "INT64", "tokens", minimum=0, maximum=1),
        spec("m", "BOOL", "tokens"),
        spec("length", "INT64"),
    ],
)
def test_masks_and_counts_beside_other_inputs_are_ones(mask: TensorSpec) -> None:
    rows = made(spec("ids", "INT64", "tokens", maximum=30521), mask)
    assert drawn(spec("ids", "INT64", "tokens", maximum=30521), mask, index=1) == {1}
    assert len({repr(one) for one in values(rows)}) == len(rows)


# rows to check with


def lengths_of(rows: list[SampleRow], axis: str = "n") -> list[int]:
    return [row.lengths[axis] for row in rows]


@pytest.mark.parametrize(
    ("bound", "buckets", "expected"),
    [
        (UNBOUNDED, (1024, 4096), [16] * ROWS + [8] * 2),
        (16, (), [16] * ROWS + [8] * 2),
        (1, (), [1] * ROWS),
        (128, (8,), [16] * ROWS + [9] * 2),
        (32, (20, 30), [16] * ROWS + [8] * 2),
        (64, tuple(range(1, 33)), [34] * ROWS + [33] * 2),
    ],
)
def test_made_up_rows_of_two_lengths_that_may_share_a_batch(
    bound: int, buckets: tuple[int, ...], expected: list[int]
) -> None:
    rows = row_check_rows(info(spec("x", "FP32", "n", bound=bound), length_buckets=buckets))
    assert lengths_of(rows) == expected


# batches


def test_a_batch_has_the_inputs_that_the_server_makes() -> None:
    x = spec("x", "INT64", "n", bound=UNBOUNDED, pad_value=7)
    inputs = [spec("n", "INT32", lengths_of="n"), x, spec("mask", "FP32", "n", mask_of="x")]
    rows = [SampleRow((np.arange(n),), {"n": n}) for n in (3, 1)]
    n, values, mask = stack(inputs, rows, 3)
    assert [n.tolist(), values.tolist()] == [[3, 1, 1], [[0, 1, 2], [0, 7, 7], [0, 7, 7]]]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0], [1, 0, 0]]
