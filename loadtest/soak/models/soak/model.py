"""Two dense layers that refuse a row whose first value is the marker: a batch with such a row fails as a whole."""

import torch
from torch import nn

MARKER = 1e30


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool((x[:, 0] == MARKER).any()):
            raise ValueError("a row is marked")
        result: torch.Tensor = self.layers(x)
        return result
