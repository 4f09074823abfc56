"""Matrix products by packed weights, which are stored in the order that oneDNN's kernels read.

An ordinary product packs its weights each time. For many rows that is a small part of the work; for the few rows of a
step it can be more than half.
"""

from __future__ import annotations

import torch

#: Values of a weight from which packing pays; fewer fit in a core's own cache (1 MiB).
LEAST_TO_PACK = 1 << 18
_PACKED_FOR = 32  # rows for which the order of packed weights is chosen; products of any number of rows use it


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
