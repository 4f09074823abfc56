"""The model as the server sees it: one character a step, and how text gets in and out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from app.errors import BadRequest, UnsupportedMedia
from app.models import Recurrent

from .network import END, LineNet

MOST = 160  # characters; the longest line that it has learnt has 97
_LONGEST_PROMPT = 200  # bytes, as model.toml says
_TEXT_TYPES = {"", "text/plain", "application/octet-stream"}


class Writer(LineNet):
    """prompt UINT8 [n, bytes] -> text UINT8 [n, bytes]: the rest of the line, up to a line feed."""

    def start(self, prompt: torch.Tensor, *, lengths: torch.Tensor) -> tuple[None, tuple[torch.Tensor, torch.Tensor]]:
        """The state before the prompt's last character is read: the GRU's, and that character."""
        symbols = self.symbol_of[prompt.long()]
        first = torch.full_like(symbols[:, :1], END)
        rows = torch.arange(len(prompt), device=prompt.device)
        # What a GRU gives at a place depends on nothing behind it, so padding does no harm here.
        read = self.gru(self.embedding(torch.cat([first, symbols[:, :-1]], 1)))[0]
        return None, (read[rows, lengths - 1], symbols[rows, lengths - 1])

    def step(
        self, _: None, state: tuple[torch.Tensor, torch.Tensor]
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor]:
        hidden = torch.gru_cell(self.embedding(state[1]), state[0], *self.gru.all_weights[0])
        symbol = self.head(hidden).argmax(1)
        return self.byte_of[symbol], (hidden, symbol), symbol == END

    def decode(self, content_type: str, body: bytes) -> dict[str, npt.NDArray[np.uint8]]:
        """The first line of a text. Raises UnsupportedMedia for another content type, BadRequest for an empty line and
        for a long one.
        """
        kind = content_type.partition(";")[0].strip().lower()
        if kind not in _TEXT_TYPES:
            raise UnsupportedMedia(f"content type: expected text/plain, got {content_type!r}")
        line = body.lstrip(b"\r\n").partition(b"\n")[0].rstrip(b"\r")
        if not 1 <= len(line) <= _LONGEST_PROMPT:
            raise BadRequest(f"body: expected a line of 1 to {_LONGEST_PROMPT} bytes, got {len(line)}")
        return {"prompt": np.frombuffer(line, np.uint8)}

    def present(self, outputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, str]:
        text = np.asarray(outputs["text"], np.uint8).tobytes()
        return {"continuation": text.partition(b"\n")[0].rstrip(b"\0").decode("ascii")}


def build() -> Recurrent:
    """The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        writer = Writer()
    return Recurrent(writer, state=((writer.gru.hidden_size,), ()), max_steps=MOST)
