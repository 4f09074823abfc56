"""What one worker holds for one model."""

from __future__ import annotations

import torch

from app.engine.devices.streams.graphs.replay import WorkerGraphs
from app.engine.devices.streams.graphs.shapes import Shape
from app.engine.devices.streams.memory.results import HostBlocks


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
