"""Matrix products by packed weights, which are stored in the order that oneDNN's kernels read.

An ordinary product packs its weights each time: for the few rows of a step that can be more than half of the work.
Milliseconds of products of decoders, plain and packed, on one core of an EPYC with AVX-512:

    rows                                   1           8          16          28
    T5-small, 512 x 2048          0.09  0.08  0.29  0.17  0.50  0.37  0.69  0.53
    T5-small, tokens 512 x 32128   5.9   4.0  12.3   4.7  15.5   6.4  21.8   9.7
    GPT-2, tokens 768 x 50257     11.5   8.7  26.7   9.8  36.5  15.0  53.9  22.5
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

#: Values of a weight from which packing pays; fewer fit in a core's own cache (1 MiB).
LEAST_TO_PACK = 1 << 18
_PACKED_FOR = 32  # rows for which the order of packed weights is chosen; products of any number of rows use it


def pays(weights: Iterable[torch.Tensor], values: int) -> bool:
    """Whether packing makes products faster that read so many `values` of these weights: of float32 on a CPU."""
    return values >= LEAST_TO_PACK and all(
        weight.device.type == "cpu" and weight.dtype == torch.float32 for weight in weights
    )


class PackedProduct:
    """[..., in] -> [..., out]: times a float32 weight [out, in] on a CPU, plus the bias. Keeps a copy of the weight.

    The constructor raises AttributeError or RuntimeError if torch's build or the processor does not support it. Call it
    in inference mode, or without gradients.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)
        self._bias = bias
        self(weight.new_zeros((1, weight.shape[1])))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return result


class PackedLinear(nn.Module):
    """An nn.Linear, or transformers' Conv1D, that multiplies by a packed copy of its weight.

    Of the weight itself it keeps the shape and type alone, unless it is `shared`: an embedding may read it, too.
    """

    def __init__(self, layer: Any, *, shared: bool) -> None:
        super().__init__()
        bias = None if layer.bias is None else layer.bias.detach()
        weight = layer.weight.detach()
        self._product = PackedProduct(weight if isinstance(layer, nn.Linear) else weight.t().contiguous(), bias)
        self.weight, self.bias = layer.weight if shared else nn.Parameter(weight.to("meta")), layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(x)


@torch.no_grad()
def pack(model: nn.Module) -> None:
    """Pack the weights of the large linear layers of a decoder, if they are float32 and on a CPU, and free the others.

    Those that hold NaN stay as they are, which is warned of later.
    """
    from transformers.pytorch_utils import Conv1D  # imported with the model

    modules = list(model.modules())
    users = Counter(id(weight) for module in modules for weight in module.parameters(recurse=False))
    parents = [module for module in modules if not isinstance(module, nn.Linear | Conv1D)]
    del modules  # or no weight is freed before the last is packed
    for parent in parents:
        for name, layer in parent._modules.items():
            if isinstance(layer, nn.Linear | Conv1D) and _packs(layer.weight):
                try:
                    setattr(parent, name, PackedLinear(layer, shared=users[id(layer.weight)] > 1))
                except (AttributeError, RuntimeError):  # a build of torch, or a processor, without these operations
                    return


def _packs(weight: torch.Tensor) -> bool:
    return pays([weight], weight.numel()) and not bool(weight.sum().isnan())
