"""Inputs that the server computes from the lengths of a batch's rows: the lengths themselves, and masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_
from typing import Any

import torch

from app.contract import TensorSpec
from app.models.base import TORCH_DTYPES


def with_server_inputs(
    inputs: Sequence[TensorSpec], sent: Sequence[Any], lengths: Mapping[str, torch.Tensor], longest: Mapping[str, int]
) -> list[Any]:
    """All inputs of a batch in the order declared: those that clients send, and those that the server computes.

    `lengths` has the length of each row, padding rows included, along each variable axis; `longest` the length of the
    batch along it.
    """
    values = iter(sent)
    return [_computed(spec, lengths, longest) if spec.made else next(values) for spec in inputs]


def _computed(spec: TensorSpec, lengths: Mapping[str, torch.Tensor], longest: Mapping[str, int]) -> torch.Tensor:
    """The input `spec`, in memory of its own, on the device of `lengths`."""
    dtype = TORCH_DTYPES[spec.datatype]
    if spec.lengths_of:
        return lengths[spec.lengths_of].to(dtype, copy=True)
    size = len(next(iter(lengths.values())))
    shape = [size, *(longest[axis] if axis else length for axis, length in zip(spec.axes, spec.shape, strict=True))]
    inside = [
        (torch.arange(longest[axis], device=lengths[axis].device) < lengths[axis][:, None]).view(
            size, *[1] * before, longest[axis], *[1] * (len(spec.axes) - before - 1)
        )
        for before, axis in enumerate(spec.axes)
        if axis
    ]
    # A model may write into its inputs, which expanded memory does not allow.
    return reduce(and_, inside).expand(shape).to(dtype).contiguous()
