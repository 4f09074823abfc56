"""Linear layers of a decoder with packed weights.

A step multiplies a few rows by nearly all of the model's weights. Milliseconds of these products on one core of an EPYC
with AVX-512, plain and packed:

    rows                                   1           8          16          28
    T5-small, 512 x 2048          0.09  0.08  0.29  0.17  0.50  0.37  0.69  0.53
    T5-small, tokens 512 x 32128   5.9   4.0  12.3   4.7  15.5   6.4  21.8   9.7
    GPT-2, 768 x 3072             0.17  0.16  0.76  0.38  1.07  0.68  1.95  1.35
    GPT-2, tokens 768 x 50257     11.5   8.7  26.7   9.8  36.5  15.0  53.9  22.5
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from app.models.packed_weights import LEAST_TO_PACK, PackedProduct


class PackedLinear(nn.Module):
    """An nn.Linear, or transformers' Conv1D, that multiplies by a packed copy of its weight."""

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias  # embeddings may read them too
        bias = None if layer.bias is None else layer.bias.detach()
        weight = layer.weight.detach()
        self._product = PackedProduct(weight if isinstance(layer, nn.Linear) else weight.t().contiguous(), bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x)


@torch.no_grad()
def pack(model: nn.Module) -> None:
    """Pack the weights of the large linear layers of a model, if they are float32 and on a CPU."""
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear | Conv1D) and _pays(layer.weight):
                try:
                    setattr(parent, name, PackedLinear(layer))
                except (AttributeError, RuntimeError):  # a build of torch, or a processor, without these operations
                    return


def _pays(weight: torch.Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST_TO_PACK
