"""A 6-layer Transformer encoder whose weights are made from a seed: what a row costs depends on its length."""

from __future__ import annotations

import torch
from torch import nn

VOCABULARY = 8_000


class Encoder(nn.Module):
    """ids [n, tokens] and mask [n, tokens] (1 counts, 0 is padding), INT64 -> [n, hidden] float32."""

    def __init__(self, hidden: int, layers: int, heads: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, hidden)
        layer = nn.TransformerEncoderLayer(hidden, heads, 4 * hidden, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.embed(ids), src_key_padding_mask=mask == 0)
        weight = mask.unsqueeze(-1).to(hidden.dtype)
        return torch.as_tensor((hidden * weight).sum(1) / weight.sum(1).clamp(min=1))


def build(hidden: int = 256, layers: int = 6, heads: int = 4, seed: int = 0) -> nn.Module:
    """The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Encoder(hidden, layers, heads)
