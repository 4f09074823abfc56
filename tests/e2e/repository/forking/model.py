"""Has processes that it forks: one for each batch, which it terminates, and from -2 on one that stays."""

import multiprocessing
import signal

import torch

FORK = multiprocessing.get_context("fork")


class Forking:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if (x == -2).any():
            FORK.Process(target=signal.pause, daemon=True).start()
        with FORK.Pool(1) as ends:
            return x.new_tensor(ends.map(abs, x[:, 0].tolist()))[:, None]
