"""The CUDA graphs of one worker and model, and the memory that their results wait in.

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

from app.engine.pool import Allocate
from app.engine.streams.captures import CaptureStream
from app.engine.streams.results import laid_out_bytes, lay_out
from app.engine.streams.shapes import Shape


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

    They do not run at the same time, so they share a memory `pool`. Nothing else happens on their `capture` stream.
    """

    def __init__(self, pool: Any, capture: CaptureStream) -> None:
        self.pool = pool
        self.capture = capture
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
            try:
                self._buffer = empty((nbytes,), torch.uint8)
            except BaseException:
                self.capture.kept += pieces  # no use, but they must not go before the others of their stream
                raise
        aside = [place.target for place in lay_out(self._buffer, outputs, shape.size)]
        self.graphs[shape] = Graph(shape, pieces, aside)
        sizes = {length: sorted(one.size for one in self.graphs if one.length == length) for _, length in self.graphs}
        self._sizes = dict(sorted(sizes.items()))
