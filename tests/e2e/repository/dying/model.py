"""Ends the thread it runs on when it sees -1."""

import torch


class Dying:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if (x == -1).any():
            raise GeneratorExit("a model that leaves")
        return x
