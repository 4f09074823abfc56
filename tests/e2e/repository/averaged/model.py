"""The mean of each row's own numbers, told from padding by a mask and a count that the server makes."""

import torch
from torch import nn


class Averaged(nn.Module):
    def forward(self, mask: torch.Tensor, ids: torch.Tensor, count: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (ids * mask).sum(dim=1) / count, ids * 2
