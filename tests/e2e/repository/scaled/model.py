"""Its input times the call's parameter `factor`, 1 where there is none."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch


class Scaled:
    def __call__(self, x: torch.Tensor, *, parameters: Sequence[Mapping[str, Any]]) -> torch.Tensor:
        return x * torch.tensor([[float(of_row.get("factor", 1))] for of_row in parameters])
