"""Ebird's networks and BERT, with random weights from a seed.

This file is copied beside a model.toml as its model.py, so it imports nothing of ours. Every builder takes `tiny`,
which keeps the shape of the network and makes it small enough to try on a CPU.

No network reads a value back to the host while it runs (no masks, no lengths), since it could not be captured as a CUDA
graph.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import BertConfig, BertModel, ResNetConfig, ResNetForImageClassification

CLASSES = 1000
_SEED = 0


class Images(nn.Module):
    """images [n, 3, height, width] uint8 -> logits [n, classes], in the precision of the weights.

    Pixels are sent as bytes and normalised on the device, as an image server does.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        # ImageNet's statistics; buffers, so that they move and are cast with the weights
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        pixels = (images.to(self.mean.dtype) / 255 - self.mean) / self.deviation
        result = self.network(pixels)
        return result if isinstance(result, torch.Tensor) else torch.as_tensor(result.logits)


class Tokens(nn.Module):
    """ids [n, tokens] int64 -> the mean of the last layer's vectors [n, hidden]. All tokens count."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.bert(input_ids=input_ids).last_hidden_state.mean(1))


def resnet(depths: list[int], tiny: bool = False, seed: int = _SEED) -> nn.Module:
    """He et al., 2015, bottleneck blocks: depths [3, 4, 6, 3] is ResNet-50, [3, 8, 36, 3] ResNet-152."""
    if tiny:
        config = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, len(depths) // 2], layer_type="bottleneck"
        )
    else:
        config = ResNetConfig(depths=depths, hidden_sizes=[256, 512, 1024, 2048], layer_type="bottleneck")
    config.num_labels = CLASSES
    with torch.random.fork_rng(devices=[]):  # the global random state is left as it was
        torch.manual_seed(seed)
        return Images(ResNetForImageClassification(config))


def vgg16(tiny: bool = False, seed: int = _SEED) -> nn.Module:
    """Simonyan and Zisserman, 2014, configuration D, without dropout, which does nothing when serving."""
    widths = [4, 8] if tiny else [64, 128, 256, 512, 512]
    repeats = [1, 1] if tiny else [2, 2, 3, 3, 3]
    side, hidden = (4, 16) if tiny else (7, 4096)
    layers: list[nn.Module] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        before = 3
        for width, repeat in zip(widths, repeats, strict=True):
            for _ in range(repeat):
                layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU(inplace=True)]
                before = width
            layers.append(nn.MaxPool2d(2))
        layers += [nn.AdaptiveAvgPool2d(side), nn.Flatten()]
        layers += [nn.Linear(before * side * side, hidden), nn.ReLU(inplace=True)]
        layers += [nn.Linear(hidden, hidden), nn.ReLU(inplace=True), nn.Linear(hidden, CLASSES)]
        return Images(nn.Sequential(*layers))


def bert(layers: int, hidden: int, heads: int, tiny: bool = False, seed: int = _SEED) -> nn.Module:
    """Devlin et al., 2018: 12, 768, 12 is BERT-base, 24, 1024, 16 BERT-large."""
    if tiny:
        layers, hidden, heads = max(1, layers // 12), 32, 2
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    config._attn_implementation = "sdpa"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Tokens(config)
