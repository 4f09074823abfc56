"""Identity that holds a batch with a 2 until it is let go, and writes down which rows it has run.

Two FIFOs beside this file: a byte into `entered` says that a batch waits, a byte out of `leave` lets it go.
"""

import os
from pathlib import Path

import torch

HERE = Path(__file__).parent


class Gate:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        with (HERE / "ran").open("a") as ran:
            ran.writelines(f"{value}\n" for value in x[:, 0].tolist())
        if (x == 2).any():
            self._wait()
        return x

    def _wait(self) -> None:
        entered = os.open(HERE / "entered", os.O_WRONLY)
        os.write(entered, b".")
        os.close(entered)
        leave = os.open(HERE / "leave", os.O_RDONLY)
        os.read(leave, 1)
        os.close(leave)
