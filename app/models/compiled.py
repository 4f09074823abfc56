"""A model, a stage or the step of a cell under torch.compile, so that it is compiled a few times, before it serves.

torch compiles again for each value that it treats as a constant: a size of 1, whether a tensor is an inference tensor
(slots and results of operators differ in that), and the strides of rows of one value. After eight times it stops
compiling. Sizes of 1 (rows and lengths) are always compiled apart: warm-up runs `batches_of_size_one`, so that this
happens before the model serves. All other differences are removed here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import nn

from app.contract import Model, SampleRow
from app.models.base import networks_of
from app.models.checks.samples import short_lengths, stretched

#: Without it the eight times are counted for all modules of one class together.
_APART: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}
)


class Compiled(nn.Module):
    """`call`, compiled; its arguments are tensors and tuples of tensors."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        # without `dynamic` it would compile each batch size
        self.compiled: Callable[..., Any] = torch.compile(call, dynamic=True, **_APART)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self.compiled(*map(_uniform, inputs), **keywords)


def batches_of_size_one(model: Model, row: SampleRow) -> Iterator[tuple[SampleRow, int]]:
    """Rows of length 1, each with a batch size: torch.compile compiles these apart. Nothing for other models."""
    inputs = model.info.client_inputs
    ones = short_lengths(inputs, 1)
    parts = (part for network in networks_of(model) for part in network.modules())
    if ones and any(isinstance(part, Compiled) for part in parts):
        for size in range(1, min(2, model.info.batching.max_batch) + 1):
            yield stretched(inputs, row, ones), size


def _uniform(value: Any) -> Any:
    """The values as a contiguous inference tensor, in the same memory where they are contiguous already."""
    if isinstance(value, tuple):
        return tuple(map(_uniform, value))
    if not isinstance(value, torch.Tensor):
        return value
    with torch.inference_mode():
        value = value.contiguous()
        return value.new_empty(0).set_(value.untyped_storage(), value.storage_offset(), value.shape)
