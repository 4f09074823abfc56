"""A ResNet-18 (He et al., 2015) whose weights are made from a seed when it is loaded."""

from __future__ import annotations

import torch
from torch import nn
from transformers import ResNetConfig, ResNetForImageClassification


class Logits(nn.Module):
    """images [n, 3, height, width] float32 -> [n, classes] float32."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.resnet = ResNetForImageClassification(config)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.resnet(pixel_values=images).logits)


def build(classes: int = 1000, seed: int = 0) -> nn.Module:
    """The global random state is left as it was."""
    config = ResNetConfig(depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic")
    config.num_labels = classes
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Logits(config)
