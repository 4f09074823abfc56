"""The digits model as the server sees it: the trained network, and how images get in and answers out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from app.contract import MAX_PIXELS
from app.errors import UnsupportedMedia

from .preprocess import Grid, read_grid

#: What a body may call itself; what it is, its first bytes say. The last two are what `curl --data-binary` and
#: programs send that name no type.
_IMAGE_TYPES = {"image/png", "image/jpeg", "image/jpg", "image/*", "application/octet-stream"}
_UNNAMED_TYPES = {"", "application/x-www-form-urlencoded"}


class Digits(nn.Module):
    """image float32 [n, 8, 8], values 0..16 -> label int64 [n] and scores float32 [n, 10], which sum to 1.

    43,000 weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.max_pixels = MAX_PIXELS  # largest image that `decode` takes
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

    def forward(self, image: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.classifier(self.features(image.unsqueeze(1) / 16.0)).softmax(dim=1)
        return {"label": scores.argmax(dim=1), "scores": scores}

    def decode(self, content_type: str, body: bytes) -> dict[str, Grid]:
        """A PNG or JPEG file of any size as the input of one row, [8, 8].

        Raises UnsupportedMedia for another content type, TooLarge for an image of more than `max_pixels`, read from
        its header, and BadRequest for a file that cannot be read or shows nothing.
        """
        kind = content_type.partition(";")[0].strip().lower()
        if kind not in _IMAGE_TYPES | _UNNAMED_TYPES:
            raise UnsupportedMedia(f"content type: expected image/png or image/jpeg, got {content_type!r}")
        return {"image": read_grid(body, self.max_pixels)}

    def present(self, outputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, Any]:
        """One row's outputs, with or without a leading dimension of one: label, its probability and all scores."""
        label = int(np.asarray(outputs["label"]).reshape(-1)[0])
        scores = [float(f"{score:.7g}") for score in np.asarray(outputs["scores"]).reshape(-1)]
        return {
            "label": label,
            "probability": scores[label],
            "scores": {str(digit): score for digit, score in enumerate(scores)},
        }


def build() -> nn.Module:
    return Digits()
