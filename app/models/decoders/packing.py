"""Linear layers of a decoder that multiply by packed weights: in the order in which oneDNN multiplies by them.

An ordinary product brings the weights into such an order each time. For many rows that is little of the work; for the
few rows of a step it can be more than half of it.

A step multiplies the rows of a unit by nearly all of the model's weights. Milliseconds of these products on one core of
an EPYC with AVX-512, plain and packed:

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

LEAST = 1 << 18  # values of a weight from which packing pays: a core's own cache keeps fewer (1 MiB)
_PACKED_FOR = 32  # rows for which the order of packed weights is chosen; products of any number of rows use it


class PackedLinear(nn.Module):
    """An nn.Linear, or transformers' Conv1D, that multiplies by a packed copy of its weight.

    Where a build of torch or a processor cannot do it, raises AttributeError or RuntimeError as it is made.
    """

    def __init__(self, layer: nn.Linear | Conv1D) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias  # embeddings may read them too
        self._own_bias = None if layer.bias is None else layer.bias.detach()
        weight = layer.weight.detach() if isinstance(layer, nn.Linear) else layer.weight.detach().t().contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)
        self(weight.new_zeros((1, weight.shape[1])))  # raises where it cannot be done

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self._own_bias, "none", [], "")
        return result


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
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and weight.numel() >= LEAST
