"""The last part of a task's model, on its device: from a transformers model's outputs to scores or vectors.

Each takes the model's inputs in the order declared, batch first, and returns float32. The attention mask is an input, 1
where a row has tokens, so that padding changes no answer.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from app.models.sources.hubs import ByName, Given, Made

MASK = "attention_mask"
MOST_MASKS = 16  # of one text


class Head(ByName):
    """A model that gets those of the tensors `names` that it takes."""

    def __init__(self, model: nn.Module, names: Sequence[str], made: Made) -> None:
        super().__init__(model, names, made, inspect.signature(model.forward).parameters)


def scores(function: str, result: Any, given: Given) -> torch.Tensor:
    """Logits [rows, ..., labels] to scores of that shape. `function`: softmax, sigmoid or none."""
    logits: torch.Tensor = result.logits.float()
    if function == "softmax":
        return logits.softmax(dim=-1)
    return logits.sigmoid() if function == "sigmoid" else logits


def spans(result: Any, given: Given) -> torch.Tensor:
    """Logits of where an answer begins and ends: [rows, tokens, 2]."""
    return torch.stack((result.start_logits, result.end_logits), dim=-1).float()


def masks(mask: int, top: int, result: Any, given: Given) -> tuple[torch.Tensor, ...]:
    """For each token that is `mask`, the `top` likeliest ids and their probabilities; 0 for other tokens.

    Both [rows, tokens, top]. A vocabulary is large: probabilities are computed for MOST_MASKS tokens of a row alone.
    """
    logits: torch.Tensor = result.logits
    masked = given["input_ids"] == mask
    first = masked.int().argsort(dim=1, descending=True, stable=True)[:, :MOST_MASKS, None]
    likely, ids = logits.gather(1, first.expand(-1, -1, logits.shape[-1])).float().softmax(dim=-1).topk(top)
    real = masked[:, :, None].gather(1, first)
    places, shape = first.expand(-1, -1, top), (*masked.shape, top)
    return tuple(one.new_zeros(shape).scatter(1, places, one * real) for one in (ids, likely))


class Pooled(nn.Module):
    """The last layer's vectors [rows, tokens, size] to one vector [rows, size] each.

    `pooling`: the mean of the tokens' vectors, that of the first token (`cls`), or that of the `last`. `dense` takes
    the pooled vectors. `normalize`: to length 1, at last.
    """

    def __init__(self, pooling: str, normalize: bool, dense: nn.Module) -> None:
        super().__init__()
        self.pooling, self.normalize, self.dense = pooling, normalize, dense

    def forward(self, result: Any, given: Given) -> torch.Tensor:
        vectors: torch.Tensor = result.last_hidden_state.float()
        mask = given[MASK]
        if self.pooling == "cls":
            pooled = vectors[:, 0]
        elif self.pooling == "last":
            index = (mask.sum(dim=1) - 1)[:, None, None].expand(-1, 1, vectors.shape[-1])
            pooled = vectors.gather(1, index)[:, 0]
        else:
            weights = mask[:, :, None].to(vectors.dtype)
            pooled = (vectors * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
        pooled = self.dense(pooled)
        return nn.functional.normalize(pooled, dim=-1) if self.normalize else pooled
