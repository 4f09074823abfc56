"""A BERT encoder whose weights are made from a seed when it is loaded."""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel


class MeanEncoder(nn.Module):
    """ids [n, tokens] and mask [n, tokens] (1 counts, 0 is padding), INT64 -> [n, hidden] float32.

    The mean of the last layer's vectors where the mask is 1; zeros for a row whose mask is all 0.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        hidden = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weight = attention_mask.unsqueeze(-1).to(hidden.dtype)
        return torch.as_tensor((hidden * weight).sum(1) / weight.sum(1).clamp(min=1))


def build(hidden: int = 384, layers: int = 6, heads: int = 12, intermediate: int = 1536, seed: int = 0) -> nn.Module:
    """The global random state is left as it was."""
    config = BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=intermediate
    )
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MeanEncoder(config)
