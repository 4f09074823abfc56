"""What one worker has of one model on a device of streams: buffers for its steps, and CUDA graphs.

A batch of a model in stages has a graph for each stage, or none. A replay reads and writes the same memory each time,
so the copies of the index and of the results are not part of the graph.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from app.engine.streams.cuda import Computation, CudaRuntime
from app.models.process_state import uncollected

_RESERVED = 64 << 20  # bytes of pinned memory for results
_ALIGNED, _LEAST = 64, 512  # bytes: where each of a step's results begins; of all of them


class StepBuffers:
    """Pinned memory and events of one step, reused by another after it has ended.

    They are not freed in between: torch's search for free pinned memory stops at the first block of the process whose
    copy is not over, and then asks the driver for more.
    """

    def __init__(self, runtime: CudaRuntime, shape: Sequence[int]) -> None:
        """`shape`: of the index. Raises if pinned memory runs out."""
        self._runtime = runtime
        self.memory = runtime.pinned((_LEAST,), torch.uint8)  # for results
        self.index = runtime.pinned(tuple(shape), torch.int64)
        self.events = [runtime.event(timed=True) for _ in range(3)]

    def results(self, values: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Memory for the outputs of the step."""
        sizes = [-(-value.nbytes // _ALIGNED) * _ALIGNED for value in values]
        self.reserve(sum(sizes))
        parts = torch.split(self.memory[: sum(sizes)], sizes)
        return [part[: one.nbytes].view(one.dtype).view(one.shape) for part, one in zip(parts, values, strict=True)]

    def reserve(self, nbytes: int) -> None:
        """Have at least so many bytes for results: a power of two, so that slightly larger batches reuse it."""
        if self.memory.nbytes < nbytes:
            self.memory = self._runtime.pinned((1 << (nbytes - 1).bit_length(),), torch.uint8)


class Shape(NamedTuple):
    """The padded length of the rows of a batch, 0 if they have none, and their number.

    A graph has one. Other batches are padded to the next larger shape, in rows and in length, but never beyond the end
    of their length bucket.
    """

    length: int
    size: int


class StageGraph(NamedTuple):
    """The captured graph of a stage: how to replay it, and the tensors that it writes and reads at each replay.

    The first stage reads slots, and has no `inputs`.
    """

    replay: Callable[[], None]
    outputs: list[torch.Tensor]
    inputs: Sequence[torch.Tensor] = ()


def reads_of(work: Callable[[], object]) -> list[torch.UntypedStorage]:
    """Run `work`, and return the memory that it reads and has not made.

    A graph reads it at each replay, also if the model has replaced it since, as a table for the length of its last
    batch: hold it as long as the graph. What is compiled runs as it was written, here and, meanwhile, elsewhere: torch
    would not run its code within a dispatch mode, nor ever again.
    """
    with torch.compiler.set_stance("force_eager"), _Reads() as reads:
        work()
    return [*reads.found.values()]


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: dict[int, torch.UntypedStorage] = {}
        self._made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _memories((args, kwargs))
        self.found |= {at: given[at] for at in given.keys() - self._made}
        result = func(*args, **(kwargs or {}))
        self._made |= _memories(result).keys() - self.found.keys()
        return result


def _memories(tree: Any) -> dict[int, torch.UntypedStorage]:
    tensors = (one for one in tree_leaves(tree) if isinstance(one, torch.Tensor) and one.layout is torch.strided)
    return {(storage := one.untyped_storage())._cdata: storage for one in tensors}


class WorkerMemory:
    """Of one worker and model. Graphs are captured on a `stream` that is used for nothing else; None: it has none.

    `graphs`: by shape, ascending, one for each stage. They do not run at the same time, so they share a memory pool.
    `kept`: everything captured, even if unused, because none may be freed before the others. `tried`: shapes that have
    graphs or cannot have them.
    """

    #: torch allows one capture at a time in a process, and before 2.13 no graph may be destroyed beside one.
    lock = threading.Lock()

    def __init__(self, index: torch.Tensor, runtime: CudaRuntime, stream: Any) -> None:
        self.index = index  # on the device; graphs read this very tensor, so it is never replaced
        self.stream = stream
        self.graphs: dict[Shape, list[StageGraph]] = {}
        self.kept: list[Any] = []
        self.tried: set[Shape] = set()
        self.spare: deque[StepBuffers] = deque()  # those of ended steps; launchers take them, completers give them back
        self._runtime = runtime
        self._pool = None if stream is None else runtime.graph_pool()
        self._inputs: dict[int, list[torch.Tensor]] = {}  # by stage
        self._made = 0  # buffers

    @property
    def largest(self) -> int:
        """Rows of the largest batch that this worker runs."""
        return self.index.shape[1]

    # buffers

    def take(self) -> StepBuffers:
        """Buffers for a step. Raises if pinned memory runs out."""
        with suppress(IndexError):
            return self.spare.pop()
        self._made += 1
        return StepBuffers(self._runtime, self.index.shape)

    def reserve(self, steps: int) -> None:
        """Have buffers for so many steps at once, with memory for results as large as any so far.

        A launcher that allocates pinned memory waits for the driver, and so does its worker. Only results that take
        more than `_RESERVED` in all steps together are left to the launchers.
        """
        while self._made < steps:
            self._made += 1
            self.spare.append(StepBuffers(self._runtime, self.index.shape))
        spare = list(self.spare)
        most = max((buffers.memory.nbytes for buffers in spare), default=0)
        if most * steps <= _RESERVED:
            for buffers in spare:
                buffers.reserve(most)

    # graphs

    def find(self, size: int, length: int, most: int) -> Shape | None:
        """The smallest shape for a batch of `size` rows of up to `length`, padded to a length of at most `most`."""
        fits = (shape for shape in self.graphs if shape.size >= size and length <= shape.length <= most)
        return next(fits, None)

    def inputs(self, stage: int, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Memory for a stage's input with the shapes of `like`. The largest batch comes first, and suffices for all."""
        kept = self._inputs.get(stage)
        if kept is None or any(one.numel() < value.numel() for one, value in zip(kept, like, strict=True)):
            kept = self._inputs[stage] = [self._runtime.empty(tuple(value.shape), value.dtype) for value in like]
        return [one.view(-1)[: value.numel()].view(value.shape) for one, value in zip(kept, like, strict=True)]

    def capture(self, work: Computation, inputs: Sequence[torch.Tensor]) -> StageGraph:
        """Capture a stage that reads `inputs`. Raises what `work` raises.

        The garbage collector might free graphs, or memory of the device, on the thread that captures.
        """
        with self.lock, uncollected():
            graph = StageGraph(*self._runtime.capture(self.stream, self._pool, work, self.kept), inputs)
        self.kept.append(graph)
        return graph

    def add(self, shape: Shape, graphs: list[StageGraph]) -> None:
        self.graphs = dict(sorted({**self.graphs, shape: graphs}.items()))

    def clear(self) -> None:
        """Free the graphs one by one, so that other threads get the interpreter lock in between."""
        self.graphs.clear()
        while self.kept:
            with self.lock:
                self.kept.pop()
