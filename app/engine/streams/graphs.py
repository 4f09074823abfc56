"""CUDA graphs: which batches of a model get one, and the graphs of a worker (docs/theory/streams.md, Graphs).

A graph has one shape. Other batches are padded to the next larger shape, in rows and in length, but never beyond the
end of their length bucket. A batch of a model in stages has a graph for each stage, or none. A replay reads and writes
the same memory each time, so the copies of the index and of the results are not part of the graph.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from app.contract import Model, axis_bounds
from app.engine.pool import Allocate
from app.engine.streams.cuda import Batch, CudaRuntime

_MOST = 64
_EACH = 16  # for fixed shapes each size up to this has a graph, then powers of two: 21 graphs for 512 rows
_LENGTHS = 6  # halvings of the bound
_SHORTEST = 8  # on a GPU batches of shorter rows are not faster


class Shape(NamedTuple):
    """The padded length of the rows of a batch, 0 if they have none, and their number."""

    length: int
    size: int


def variable_axis(model: Model) -> tuple[str, int] | None:
    """Name and bound of the one variable axis along which batches may be padded.

    None if there is none or several, if it is unbounded, or if the row check does not refuse models that depend on
    padding.
    """
    inputs = model.info.client_inputs
    bounds = axis_bounds(inputs)
    if len(bounds) != 1 or not all(spec.bounded for spec in inputs) or model.checks.row_check != "refuse":
        return None
    return next(iter(bounds.items()))


def sizes_of(largest: int, fixed: bool) -> list[int]:
    """Batch sizes that get graphs on a worker of so many rows."""
    if fixed:
        powers = [1 << n for n in range(_EACH.bit_length(), largest.bit_length()) if 1 << n < largest]
        return sorted({*range(1, min(largest, _EACH) + 1), *powers, largest})
    steps = {size for n in range(largest.bit_length()) for size in (1 << n, 3 << n)}  # 1, 2, 3, 4, 6, 8, 12, 16, ...
    return sorted({size for size in steps if size < largest} | {largest})


def lengths_of(bound: int, buckets: tuple[int, ...], sizes: int) -> list[int]:
    """Lengths that batches are padded to, for so many sizes, ascending."""
    most = max(1, _MOST // sizes)
    if buckets:
        return sorted({bucket for bucket in buckets if bucket < bound} | {bound})[:most]
    halves = [-(-bound // (1 << n)) for n in range(min(most, _LENGTHS))]
    return sorted({length for length in halves if length >= _SHORTEST} | {bound})


class StageGraph(NamedTuple):
    """The captured graph of a stage: how to replay it, and the tensors that it writes and reads at each replay.

    The first stage reads slots, and has no `inputs`.
    """

    replay: Callable[[], None]
    outputs: list[torch.Tensor]
    inputs: Sequence[torch.Tensor] = ()


class WorkerGraphs:
    """The graphs of one worker and model: by shape, ascending, a StageGraph for each stage.

    They do not run at the same time, so they share a memory `pool`. The `stream` that they are captured on is used for
    nothing else. `kept`: everything captured, even if unused, because none may be freed before the others. `tried`:
    shapes that have graphs or cannot have them.
    """

    #: torch allows one capture at a time in a process, and before 2.13 no graph may be destroyed beside one.
    lock = threading.Lock()

    def __init__(self, pool: Any, stream: Any) -> None:
        self.pool = pool
        self.stream = stream
        self.kept: list[Any] = []
        self.tried: set[Shape] = set()
        self.pieces: dict[Shape, list[StageGraph]] = {}
        self._inputs: dict[int, list[torch.Tensor]] = {}  # by stage

    def find(self, size: int, length: int, most: int) -> Shape | None:
        """The smallest shape for a batch of `size` rows of up to `length`, padded to a length of at most `most`."""
        fits = (shape for shape in self.pieces if shape.size >= size and length <= shape.length <= most)
        return next(fits, None)

    def inputs(self, stage: int, like: Sequence[torch.Tensor], empty: Allocate) -> list[torch.Tensor]:
        """Memory for a stage's input with the shapes of `like`. The largest batch comes first, and suffices for all."""
        kept = self._inputs.get(stage)
        if kept is None or any(one.numel() < value.numel() for one, value in zip(kept, like, strict=True)):
            kept = self._inputs[stage] = [empty(tuple(value.shape), value.dtype) for value in like]
        return [one.view(-1)[: value.numel()].view(value.shape) for one, value in zip(kept, like, strict=True)]

    def capture(self, runtime: CudaRuntime, work: Batch, inputs: Sequence[torch.Tensor]) -> StageGraph:
        """Capture a stage that reads `inputs`. Raises what `work` raises."""
        with self.lock, _uncollected():
            piece = StageGraph(*runtime.capture(self.stream, self.pool, work, self.kept), inputs)
        self.kept.append(piece)
        return piece

    def add(self, shape: Shape, pieces: list[StageGraph]) -> None:
        self.pieces = dict(sorted({**self.pieces, shape: pieces}.items()))

    def clear(self) -> None:
        """Free the graphs one by one, so that other threads get the interpreter lock in between."""
        self.pieces.clear()
        while self.kept:
            with self.lock:
                self.kept.pop()


@contextmanager
def _uncollected() -> Iterator[None]:
    """The collector might free graphs, or memory of the device, on the thread that captures."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()
