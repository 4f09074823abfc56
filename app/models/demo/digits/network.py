"""The network itself, shared by serving and training."""

from __future__ import annotations

import torch
from torch import nn


class DigitNet(nn.Module):
    """float32 [n, 8, 8] with values 0..16 -> logits [n, 10]. 43,000 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(48, 48, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.3), nn.Linear(48 * 16, 10))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.classifier(self.features(image.unsqueeze(1) / 16.0))
        return logits
