"""A multilayer perceptron whose weights are made from a seed when it is loaded."""

import torch
from torch import nn


def build(hidden: int = 4096, seed: int = 0) -> nn.Module:
    """[n, 1024] -> [n, 1000], float32. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(1024, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1000),
        )
