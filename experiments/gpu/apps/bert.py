"""The network of the servers made by hand, on a device, in the precision that Starling computes in there."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from experiments.gpu.networks import TOKENS, whole_bert


def load(device: str, size: str) -> nn.Module:
    torch.set_num_threads(1)
    dtype = torch.float16 if device == "cuda" else torch.float32
    return whole_bert(quick=size == "tiny").to(device, dtype).eval()


def rows_of(bodies: list[bytes], device: str) -> torch.Tensor:
    """One row for each body."""
    rows = np.frombuffer(b"".join(bodies), np.int32).reshape(len(bodies), TOKENS)
    return torch.from_numpy(rows.copy()).to(device)


def answers(outputs: torch.Tensor) -> list[bytes]:
    return [row.tobytes() for row in outputs.float().cpu().numpy()]
