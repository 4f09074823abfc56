"""Three convolutions that keep 64 x 64 pixels: few weights, much arithmetic, so that a batch gains nothing on a CPU."""

from __future__ import annotations

import torch
from torch import nn


def build(channels: int = 128, seed: int = 0) -> nn.Module:
    """[n, 3, 64, 64] float32 -> [n, 10]. Random weights; the global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs in (3, channels, channels):
            layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))
