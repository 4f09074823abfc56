"""The weights of the model `lstm` served whole, in the two ways that frameworks offer for rows of different lengths.

Both get the rows' lengths beside the padded rows, and answer as the plain module does for each row alone.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from loadtest.models.lstm.model import Classifier, build


class _Whole(nn.Module):
    def __init__(self, plain: Classifier) -> None:
        super().__init__()
        self.plain = plain


class Packed(_Whole):
    """Rows of any length together, longest first, each as many steps as it is long."""

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        rows = pack_padded_sequence(self.plain.embedding(ids), lengths, batch_first=True, enforce_sorted=False)
        _, (hidden, _) = self.plain.lstm(rows)
        logits: torch.Tensor = self.plain.head(hidden[-1])
        return logits


class Padded(_Whole):
    """Every row as many steps as the longest; the answer is made of the output at its own last one."""

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        every, _ = self.plain.lstm(self.plain.embedding(ids))
        logits: torch.Tensor = self.plain.head(every[torch.arange(len(ids)), lengths - 1])
        return logits


def _plain() -> Classifier:
    plain = build()
    assert isinstance(plain, Classifier)
    return plain


def packed() -> nn.Module:
    return Packed(_plain())


def padded() -> nn.Module:
    return Padded(_plain())
