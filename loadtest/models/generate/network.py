"""The network itself, shared by serving and training, and what its symbols are."""

from __future__ import annotations

import torch
from torch import nn

END = 0  #: the symbol before a line and after it: a line feed
OTHER = 1  #: every byte that is neither a line feed nor printable ASCII
SYMBOLS = 2 + 95
_FIRST = 32  # the space, the first printable byte
_LINE_FEED = 10


class LineNet(nn.Module):
    """Symbols of a line, one after the other -> what comes next. 63,000 weights."""

    symbol_of: torch.Tensor
    byte_of: torch.Tensor

    def __init__(self, width: int = 32, hidden: int = 112) -> None:
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, SYMBOLS)
        symbol_of = torch.full((256,), OTHER)
        symbol_of[_LINE_FEED] = END
        symbol_of[_FIRST : _FIRST + 95] = torch.arange(2, SYMBOLS)
        byte_of = torch.tensor([_LINE_FEED, ord("?"), *range(_FIRST, _FIRST + 95)], dtype=torch.uint8)
        # not stored with the weights: they are no more than this table of ASCII
        self.register_buffer("symbol_of", symbol_of, persistent=False)
        self.register_buffer("byte_of", byte_of, persistent=False)

    def forward(self, symbols: torch.Tensor) -> torch.Tensor:
        """INT64 [rows, length] -> logits of the symbol that follows each [rows, length, SYMBOLS], float32."""
        logits: torch.Tensor = self.head(self.gru(self.embedding(symbols))[0])
        return logits
