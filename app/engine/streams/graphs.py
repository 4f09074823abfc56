"""CUDA graphs: which batches of a model get one, and the graphs of a worker.

A graph is one shape. Batches between two shapes are padded to the next, in rows and in length. That is right for a
model whose answers do not depend on padding: the row check at load compares rows in batches of their own length and of
longer ones, and a model that is served whatever it finds has no graphs of variable length. `length_buckets` are a
promise besides: no row is padded beyond the end of its bucket, by graphs neither, so a model that lists every length
is never padded.

Every graph takes memory and time to capture, on each worker, so there are at most `_MOST` for one worker and model: 64
are some seconds of loading, if capturing one takes 30 ms. A model of fixed shapes has far fewer. One with a variable
axis has fewer sizes and, for each, the ends of its buckets, the shortest first, for there a batch takes longest to
launch compared with what it computes. Without buckets it has the bound and what is left of it when it is halved again
and again, so that rows no shorter than the least of these lengths are padded to less than twice their own.

A model in stages has a graph for each of them, captured together: a batch has all or none. What a stage reads is put
into memory where its graph finds it, the same for all graphs of the worker, since one of them runs at a time.

A graph writes the same tensors at each replay. What it leaves is copied behind the replay, on the worker's stream, to
memory of the step's own, so that the next replay does not wait until the results have left for the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from app.contract import Model, axis_bounds
from app.engine.pool import Allocate

_MOST = 64
_EACH = 16  # of fixed shapes every size up to here has a graph of its own, then powers of two: 21 for 512 rows
_LENGTHS = 6  # halvings of the bound
_SHORTEST = 8  # a batch of shorter rows takes no less time, on a GPU


class Shape(NamedTuple):
    """The length that the rows of a batch are padded to, 0 if they have none, and their number."""

    length: int
    size: int


def variable_axis(model: Model) -> tuple[str, int] | None:
    """Name and bound of the variable axis that batches may be padded along.

    None if there is none, or several, if it is without bound, or if the row check does not refuse a model that depends
    on padding.
    """
    inputs = model.info.client_inputs
    bounds = axis_bounds(inputs)
    if len(bounds) != 1 or not all(spec.bounded for spec in inputs) or model.row_check != "refuse":
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


class Piece(NamedTuple):
    """A captured stage: what replays it, the tensors that it writes each time, and those that it reads.

    The first stage reads slots, and has none.
    """

    replay: Callable[[], None]
    outputs: list[torch.Tensor]
    inputs: Sequence[torch.Tensor] = ()


class WorkerGraphs:
    """The graphs of one worker and model: by shape, ascending, a Piece for each stage.

    They do not run at the same time, so they share a memory `pool`. Nothing else happens on the `stream` that they are
    captured on. `kept`: all that was captured, of use or not: none may go before the others of the stream. `tried`:
    shapes that have graphs, or cannot have them.
    """

    def __init__(self, pool: Any, stream: Any) -> None:
        self.pool = pool
        self.stream = stream
        self.kept: list[Any] = []
        self.tried: set[Shape] = set()
        self.pieces: dict[Shape, list[Piece]] = {}
        self._inputs: dict[int, list[torch.Tensor]] = {}  # by stage

    def find(self, size: int, length: int, most: int) -> Shape | None:
        """The shape that a batch of so many rows, the longest so long, is padded to: to a length of `most` at most."""
        fits = (shape for shape in self.pieces if shape.size >= size and length <= shape.length <= most)
        return next(fits, None)

    def inputs(self, stage: int, like: Sequence[torch.Tensor], empty: Allocate) -> list[torch.Tensor]:
        """Memory for what a stage reads, of these shapes. The largest batch comes first, and has enough for all."""
        kept = self._inputs.get(stage)
        if kept is None or any(one.numel() < value.numel() for one, value in zip(kept, like, strict=True)):
            kept = self._inputs[stage] = [empty(tuple(value.shape), value.dtype) for value in like]
        return [one.view(-1)[: value.numel()].view(value.shape) for one, value in zip(kept, like, strict=True)]

    def add(self, shape: Shape, pieces: list[Piece]) -> None:
        self.pieces = dict(sorted({**self.pieces, shape: pieces}.items()))

    def clear(self) -> None:
        """Let the graphs go; one by one, so that others get the interpreter lock in between: each takes its time."""
        self.pieces.clear()
        while self.kept:
            self.kept.pop()
