"""A model that one request can crash."""

from __future__ import annotations

import os

import torch
from torch import nn


class Fatal(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x == 666).any()):
            os.abort()
        return x


def build() -> nn.Module:
    return Fatal()
