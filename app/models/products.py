"""Products by packed weights: in the order in which oneDNN multiplies by them.

An ordinary product brings the weights into such an order each time. For many rows that is little of the work; for the
few rows of a step it can be more than half of it.
"""

from __future__ import annotations

import torch

#: Values of a weight from which packing pays: a core's own cache keeps fewer (1 MiB).
LEAST = 1 << 18
_PACKED_FOR = 32  # rows for which the order of packed weights is chosen; products of any number of rows use it


class Product:
    """[..., in] -> [..., out]: times a float32 weight [out, in] on a CPU, plus the bias. Keeps a copy of the weight.

    Where a build of torch or a processor cannot do it, raises AttributeError or RuntimeError as it is made. Make it in
    inference mode, or without gradients.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, _PACKED_FOR)
        self._bias = bias
        self(weight.new_zeros((1, weight.shape[1])))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return result
