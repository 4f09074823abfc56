"""How likely tokens are in a sample: as transformers' own processors of logits say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers.generation import logits_process as processors

from app.models.decoders.choosing import Shares

WORDS = 600


def of_transformers(scores: torch.Tensor, asked: dict[str, Any]) -> torch.Tensor:
    made = {
        "temperature": processors.TemperatureLogitsWarper,
        "top_k": processors.TopKLogitsWarper,
        "top_p": processors.TopPLogitsWarper,
    }
    rows = scores[None].double()
    for name, value in asked.items():
        rows = made[name](value)(torch.zeros((1, 1), dtype=torch.long), rows)
    return torch.softmax(rows[0], 0)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.6},
        {"top_k": 7},
        {"top_p": 0.9},
        {"temperature": 1.7, "top_k": 40, "top_p": 0.5},
    ],
)
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 40.0])
def test_shares_are_those_of_transformers(asked: dict[str, Any], spread: float) -> None:
    torch.manual_seed(1)
    scores = (spread * torch.randn(WORDS) + torch.linspace(0, 1e-3, WORDS)).double()  # no two alike
    shares = Shares(**asked)(scores)
    torch.testing.assert_close(shares / shares.sum(), of_transformers(scores, asked))
