"""A model, a stage or the step of a cell as torch compiles it: a few times, and not while it serves.

torch compiles again for what it takes for a constant: a size of 1, whether a tensor was made for inference or for
anything (slots and results of operators differ in that), and the strides of rows of one value. After eight times it
compiles no more. Sizes of 1 are compiled apart in any case, rows and lengths; `shortest` are the batches by which
warm-up has that done before the model serves. All else is made uniform here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import nn

from app.contract import Model, SampleRow
from app.models.checks.samples import short_lengths, stretched

#: Or the eight times would be those of all modules of a class, whatever their weights.
_APART: dict[str, Any] = (
    {"isolate_recompiles": True} if "isolate_recompiles" in signature(torch.compile).parameters else {}
)


class Compiled(nn.Module):
    """`call` of tensors, and of tuples of them."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        # Without `dynamic` each batch size would be compiled.
        self.compiled: Callable[..., Any] = torch.compile(call, dynamic=True, **_APART)

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        return self.compiled(*map(_uniform, inputs), **keywords)


def shortest(model: Model, row: SampleRow) -> Iterator[tuple[SampleRow, int]]:
    """Rows of length 1 and sizes of batches of them, for which a compiled model is compiled apart."""
    inputs = model.info.client_inputs
    ones = short_lengths(inputs, 1)
    parts = [part for call in (model.call, *model.stages) if isinstance(call, nn.Module) for part in call.modules()]
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
