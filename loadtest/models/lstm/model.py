"""A text classifier's recurrent network whose weights are made from a seed when it is loaded."""

from __future__ import annotations

import torch
from torch import nn


class Classifier(nn.Module):
    """ids INT64 [n, tokens] -> logits float32 [n, classes], from the top layer's last state."""

    def __init__(self, words: int, hidden: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, hidden)
        self.lstm = nn.LSTM(hidden, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        _, (hidden, _) = self.lstm(self.embedding(ids))
        logits: torch.Tensor = self.head(hidden[-1])
        return logits


def build(words: int = 10_000, hidden: int = 512, layers: int = 2, classes: int = 10, seed: int = 0) -> nn.Module:
    """The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Classifier(words, hidden, layers, classes)
