"""What one worker holds for one model."""

from __future__ import annotations

import torch

from app.engine.streams.replay import WorkerGraphs
from app.engine.streams.results import HostBlocks
from app.engine.streams.shapes import Shape


class WorkerMemory:
    def __init__(self, index: torch.Tensor, blocks: HostBlocks) -> None:
        self.index = index  # on the device; the graphs read it, so there is one for good
        self.blocks = blocks
        self.graphs: WorkerGraphs | None = None
        self.ran: set[Shape] = set()  # graphs that have been replayed before the model serves

    @property
    def largest(self) -> int:
        """Rows of the largest batch that this worker runs."""
        return self.index.shape[1]
