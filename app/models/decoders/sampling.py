"""How likely each token is in a sample: temperature, top_k and top_p, in the order of transformers' `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch


@dataclass(frozen=True, slots=True)
class Shares:
    """`top_k` 0 and `top_p` 1 leave all tokens."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0

    @classmethod
    def of(cls, wanted: Mapping[str, Any]) -> Self:
        """By their names in generation_config."""
        return cls(**{name: wanted[name] for name in ("temperature", "top_k", "top_p") if wanted.get(name) is not None})

    def __call__(self, scores: torch.Tensor) -> torch.Tensor:
        """`scores` [words] -> [words], 0 for tokens that are out. Those that are left need not add up to 1."""
        if self.temperature != 1.0:
            scores = scores / self.temperature
        if 0 < self.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(self.top_k).values[-1], -torch.inf)
        shares = torch.softmax(scores.double(), 0)
        return shares if self.top_p >= 1.0 else _likeliest(shares, self.top_p)


def _likeliest(shares: torch.Tensor, top_p: float) -> torch.Tensor:
    """The likeliest tokens that together have a share of `top_p`; the others 0.

    Tokens with at most (1 - top_p) / words each have no more than 1 - top_p together, so they are out, and need not be
    sorted: that takes most of the time where the vocabulary is large.
    """
    places = (shares > (1.0 - top_p) / len(shares)).nonzero()[:, 0]
    ordered, order = shares[places].sort(descending=True)
    before = ordered.cumsum(0) - ordered
    before[0] = 0.0  # one is left, however small `top_p`
    kept = places[order[before < top_p]]
    return torch.zeros_like(shares).index_copy_(0, kept, shares[kept])
