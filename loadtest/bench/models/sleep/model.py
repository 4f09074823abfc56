"""Takes 4 + 0.65 ms a row and no processor: a device whose speed does not drift."""

from __future__ import annotations

import time

import torch
from torch import nn


class Sleep(nn.Module):
    """[n, 4] float32 -> the same, doubled, after so long."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep((4 + 0.65 * len(x)) / 1e3)
        return x * 2


def build() -> nn.Module:
    return Sleep()
