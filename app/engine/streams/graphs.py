"""CUDA graphs: which batches of a model get one, the graphs of a worker, and the memory that their results wait in.

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

A graph writes the same tensors at each replay. If the out-stream read them there, the next replay would have to wait
until the results of the last were on the host. So each unit sets its outputs aside: behind its replay, on the worker's
stream, they are copied into a buffer on the device, and the out-stream reads the buffer. There are two sets of output
memory then, the graphs' own and the buffer, and a replay runs while the results before it leave.

What that costs is one copy within the device, about 3 us and then 1 us for each 2 MB, and the buffer, as large as the
outputs of the largest batch. Graphs in pairs, with outputs of their own, would need no copy, but a second memory pool
for all that a batch allocates, since graphs of one pool write over each other's outputs, and twice the time to
capture. A second buffer would help only where results take longer to leave than a batch to compute, and there the link
to the host sets the pace in any case.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from app.contract import Model, axis_bounds
from app.engine.pool import Allocate
from app.engine.streams.results import laid_out_bytes, lay_out

_MOST = 64
_EACH = 16  # of fixed shapes every size up to here has a graph of its own, then powers of two: 21 for 512 rows
_LENGTHS = 6  # halvings of the bound
_SHORTEST = 8  # a batch of shorter rows takes no less time, on a GPU


class Shape(NamedTuple):
    """Rows of a batch, and the length that they are padded to; 0 if they have none."""

    size: int
    length: int = 0


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


@dataclass(slots=True, weakref_slot=True, eq=False)
class Graph:
    """A captured batch, by stage, and where its outputs are set aside."""

    shape: Shape
    pieces: Sequence[Piece]
    aside: list[torch.Tensor]

    @property
    def outputs(self) -> list[torch.Tensor]:
        return self.pieces[-1].outputs

    def set_aside(self) -> None:
        for target, output in zip(self.aside, self.outputs, strict=True):
            target.copy_(output, non_blocking=True)


class WorkerGraphs:
    """The graphs of one worker and model.

    They do not run at the same time, so they share a memory `pool`. Nothing else happens on the `stream` that they are
    captured on. `kept`: all that was captured, of use or not: none may go before the others of the stream.
    """

    def __init__(self, pool: Any, stream: Any) -> None:
        self.pool = pool
        self.stream = stream
        self.kept: list[Any] = []
        self.graphs: dict[Shape, Graph] = {}
        #: The out-event of the last unit whose outputs were set aside: until it fires the buffer is being read.
        self.left: Any = None
        self._sizes: dict[int, list[int]] = {}  # by length, ascending both
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._inputs = torch.empty(0, dtype=torch.uint8)

    def find(self, size: int, length: int, most: int) -> Graph | None:
        """The graph that a batch of so many rows, the longest so long, is padded to: to a length of `most` at most."""
        for captured, sizes in self._sizes.items():
            if captured >= length:
                at = bisect_left(sizes, size)
                return self.graphs[Shape(sizes[at], captured)] if captured <= most and at < len(sizes) else None
        return None

    def inputs(self, like: Sequence[torch.Tensor], size: int, empty: Allocate) -> list[torch.Tensor]:
        """Memory for what a stage reads, of these shapes. It grows as that for the outputs does."""
        nbytes = laid_out_bytes(like, size)
        if nbytes > self._inputs.numel():
            self._inputs = empty((nbytes,), torch.uint8)
        return [place.target for place in lay_out(self._inputs, like, size)]

    def add(self, shape: Shape, pieces: Sequence[Piece], empty: Allocate) -> None:
        """`empty` allocates device memory. The buffer grows with the largest; older graphs keep theirs."""
        outputs = pieces[-1].outputs
        nbytes = laid_out_bytes(outputs, shape.size)
        if nbytes > self._buffer.numel():
            self._buffer = empty((nbytes,), torch.uint8)
        aside = [place.target for place in lay_out(self._buffer, outputs, shape.size)]
        self.graphs[shape] = Graph(shape, pieces, aside)
        sizes = {length: sorted(one.size for one in self.graphs if one.length == length) for _, length in self.graphs}
        self._sizes = dict(sorted(sizes.items()))

    def clear(self) -> None:
        """Let the graphs go; one by one, so that others get the interpreter lock in between: each takes its time."""
        self.graphs.clear()
        while self.kept:
            self.kept.pop()
