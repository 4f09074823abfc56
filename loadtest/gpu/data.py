"""Data shared by the measurements and their page: networks, loads, and the paper's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: The result of one measurement, as plain JSON values.
Found = dict[str, Any]

MIB = 1 << 20
MEMORY_LIMIT = 1.15  # memory of six workers over that of one; the paper's, where each worker copies the weights
QOS_MS = 200.0
LOW, HIGH = 0.3, 0.9  # of the baseline's largest rate within QoS
COUNTS = (150, 250)  # requests at the low rate, then at the high
PIXELS, TOKENS = 224, 128
TINY_PIXELS, TINY_TOKENS = 32, 8


@dataclass(frozen=True, slots=True)
class Network:
    """How a network is built: a function of `networks`, its keywords as TOML, and the width of its output."""

    title: str
    build: str
    kwargs: str
    images: bool
    width: int = 1000
    tiny_width: int = 1000

    def row(self, tiny: bool) -> tuple[int, ...]:
        """Shape of one row of the input."""
        if self.images:
            side = TINY_PIXELS if tiny else PIXELS
            return (3, side, side)
        return (TINY_TOKENS if tiny else TOKENS,)


NETWORKS = {
    "resnet50": Network("ResNet-50", "resnet", "depths = [3, 4, 6, 3]", True),
    "resnet152": Network("ResNet-152", "resnet", "depths = [3, 8, 36, 3]", True),
    "vgg16": Network("VGG-16", "vgg16", "", True),
    "bert-base": Network("BERT-base", "bert", "layers = 12\nhidden = 768\nheads = 12", False, 768, 32),
    "bert-large": Network("BERT-large", "bert", "layers = 24\nhidden = 1024\nheads = 16", False, 1024, 32),
}
