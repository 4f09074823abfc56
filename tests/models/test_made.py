"""Invariant: a made input says of each row, padding rows included, how long it is or where its values are."""

from __future__ import annotations

import pytest
import torch

from app.contract import TensorSpec
from app.models.base import TORCH_DTYPES
from app.models.made import make_input, with_made

LENGTHS = {"tokens": torch.tensor([2, 4, 1, 1]), "w": torch.tensor([3, 1, 2, 2])}
LONGEST = {"tokens": 4, "w": 3}
INTEGERS = [name for name, dtype in TORCH_DTYPES.items() if not dtype.is_floating_point and name != "BOOL"]


def lengths_spec(datatype: str, axis: str = "tokens") -> TensorSpec:
    return TensorSpec("n", datatype, (), (), (), lengths_of=axis)


def mask_spec(datatype: str, *axes: str | int) -> TensorSpec:
    shape = tuple(-1 if isinstance(axis, str) else axis for axis in axes)
    names = tuple(axis if isinstance(axis, str) else "" for axis in axes)
    return TensorSpec("mask", datatype, shape, names, tuple(max(length, 0) for length in shape), mask_of="ids")


@pytest.mark.parametrize("datatype", TORCH_DTYPES)
def test_lengths_and_masks_in_every_datatype(datatype):
    mask = make_input(mask_spec(datatype, "tokens"), LENGTHS, LONGEST)
    assert mask.dtype == TORCH_DTYPES[datatype]
    assert mask.tolist() == [[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 0, 0, 0]]
    if datatype in INTEGERS:
        lengths = make_input(lengths_spec(datatype), LENGTHS, LONGEST)
        assert lengths.dtype == TORCH_DTYPES[datatype]
        assert lengths.tolist() == [2, 4, 1, 1]


def test_a_mask_of_two_axes_and_a_fixed_one():
    made = make_input(mask_spec("INT32", "tokens", 2, "w"), LENGTHS, LONGEST)
    expected = torch.zeros(4, 4, 2, 3, dtype=torch.int32)
    for row, (tokens, w) in enumerate(zip(LENGTHS["tokens"], LENGTHS["w"], strict=True)):
        expected[row, :tokens, :, :w] = 1
    assert torch.equal(made, expected)


def test_a_mask_of_one_axis_twice():
    made = make_input(mask_spec("BOOL", "w", "w"), {"w": torch.tensor([1, 2])}, {"w": 2})
    assert made.int().tolist() == [[[1, 0], [0, 0]], [[1, 1], [1, 1]]]


@pytest.mark.parametrize(
    "spec",
    [lengths_spec("INT64"), mask_spec("BOOL", "tokens"), mask_spec("BOOL", "tokens", 5), mask_spec("FP32", 3, "w")],
)
def test_a_model_may_write_into_what_is_made(spec):
    before = {axis: values.clone() for axis, values in LENGTHS.items()}
    make_input(spec, LENGTHS, LONGEST).logical_not_()
    assert all(torch.equal(before[axis], values) for axis, values in LENGTHS.items())


def test_made_inputs_are_in_the_order_declared():
    ids, extra = (TensorSpec(name, "INT64", (-1,), ("tokens",), (9,)) for name in ("ids", "extra"))
    inputs = [lengths_spec("INT64"), ids, mask_spec("BOOL", "tokens"), extra, lengths_spec("INT32", "w")]
    values = with_made(inputs, ["a", "b"], LENGTHS, LONGEST)
    kinds = [value if isinstance(value, str) else value.dtype for value in values]
    assert kinds == [torch.int64, "a", torch.bool, "b", torch.int32]
