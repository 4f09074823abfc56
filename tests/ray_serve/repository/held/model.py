"""Answers with each row and the process that ran it. A batch with a negative row waits until it is let go.

Beside this file: a line in `ran` for each row, its process and its value, before it runs; the FIFO `leave`, of which
each batch that waits takes a byte.
"""

import os
from pathlib import Path

import torch

HERE = Path(__file__).parent


class Held:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with (HERE / "ran").open("a") as ran:
            ran.writelines(f"{os.getpid()} {value}\n" for value in x[:, 0].tolist())
        if (x < 0).any():
            leave = os.open(HERE / "leave", os.O_RDONLY)
            os.read(leave, 1)
            os.close(leave)
        return torch.cat([x, torch.full_like(x, os.getpid())], dim=1)
