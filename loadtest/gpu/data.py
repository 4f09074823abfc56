"""What both the measurements and their page know: the networks, the loads, and what the paper asks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: What one measurement found, as JSON has it.
Found = dict[str, Any]

MIB = 1 << 20
MEMORY_LIMIT = 1.15  # six workers against one: the paper's own, whose workers have a copy of the weights each
QOS_MS = 200.0
LOW, HIGH = 0.3, 0.9  # of the baseline's largest rate within QoS
COUNTS = (150, 250)  # requests at the low rate, then at the high
PIXELS, TOKENS = 224, 128
TINY_PIXELS, TINY_TOKENS = 32, 8


@dataclass(frozen=True, slots=True)
class Network:
    """How one is built: a function of `networks`, its keywords as TOML, and the width of its output."""

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
