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

MASK = "attention_mask"
MOST_MASKS = 16  # of one text


class NamedHead(nn.Module):
    """Calls a model with the named arguments that it takes. `names`: those of all tensors that are passed."""

    def __init__(self, model: nn.Module, names: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        self.names = list(names)
        self._takes = frozenset(inspect.signature(model.forward).parameters)

    def _result(self, tensors: Sequence[torch.Tensor]) -> Any:
        named = zip(self.names, tensors, strict=True)
        return self.model(**{name: tensor for name, tensor in named if name in self._takes})


class ScoreHead(NamedHead):
    """Logits [rows, ..., labels] to scores of that shape. `function`: softmax, sigmoid or none."""

    def __init__(self, model: nn.Module, names: Sequence[str], function: str) -> None:
        super().__init__(model, names)
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self._result(tensors).logits.float()
        if self.function == "softmax":
            return logits.softmax(dim=-1)
        return logits.sigmoid() if self.function == "sigmoid" else logits


class SpanHead(NamedHead):
    """Logits of where an answer begins and ends: [rows, tokens, 2]."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        found = self._result(tensors)
        return torch.stack((found.start_logits, found.end_logits), dim=-1).float()


class MaskHead(NamedHead):
    """For each token that is `mask`, the `top` likeliest ids and their probabilities; 0 for other tokens.

    Both [rows, tokens, top]. A vocabulary is large: probabilities are computed for MOST_MASKS tokens of a row alone.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], mask: int, top: int) -> None:
        super().__init__(model, names)
        self.mask = mask
        self.top = top

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits: torch.Tensor = self._result(tensors).logits
        masked = tensors[self.names.index("input_ids")] == self.mask
        first = masked.int().argsort(dim=1, descending=True, stable=True)[:, :MOST_MASKS, None]
        scores, ids = logits.gather(1, first.expand(-1, -1, logits.shape[-1])).float().softmax(dim=-1).topk(self.top)
        real = masked[:, :, None].gather(1, first)
        places, shape = first.expand(-1, -1, self.top), (*masked.shape, self.top)
        return ids.new_zeros(shape).scatter(1, places, ids * real), scores.new_zeros(shape).scatter(
            1, places, scores * real
        )


class PooledHead(NamedHead):
    """The last layer's vectors [rows, tokens, size] to one vector [rows, size] each.

    `pooling`: the mean of the tokens' vectors, that of the first token (`cls`), or that of the `last`. `dense` takes
    the pooled vectors. `normalize`: to length 1, at last.
    """

    def __init__(self, model: nn.Module, names: Sequence[str], pooling: str, normalize: bool, dense: nn.Module) -> None:
        super().__init__(model, names)
        self.pooling = pooling
        self.normalize = normalize
        self.dense = dense

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        vectors: torch.Tensor = self._result(tensors).last_hidden_state.float()
        mask = tensors[self.names.index(MASK)]
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
