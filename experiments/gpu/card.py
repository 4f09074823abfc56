"""A device as torch has it: streams, graphs, pinned memory. `HostCard` only tries the measurements on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from experiments.gpu.blocks import Block

Work = Callable[[], Any]


class HostCard:
    """The interface, on a CPU: everything is done when it is called."""

    name = "none: tried on the CPU"

    def __init__(self, kept: list[Any]) -> None:
        self.device = torch.device("cpu")
        self.half = torch.float32  # half precision is slow there
        self.kept = kept

    def stream(self) -> Any:
        return SimpleNamespace(synchronize=lambda: None)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it, what is called runs on the stream."""
        return nullcontext()

    def sync(self) -> None:
        """Wait until the device has nothing to do."""

    def pinned(self, *shape: int) -> torch.Tensor:
        """Bytes of host memory that the device reads by itself."""
        return torch.empty(shape, dtype=torch.uint8)

    def capture(self, work: Work, stream: Any) -> Work:
        """A graph of `work`: its replay, for within `on`. It returns what `work` returned, which it writes anew."""
        return torch.inference_mode()(work)


class CudaCard(HostCard):
    """GPU number 0."""

    def __init__(self, kept: list[Any]) -> None:
        super().__init__(kept)
        self.device = torch.device("cuda", 0)
        self.half = torch.float16
        self.name = torch.cuda.get_device_name(0)

    def stream(self) -> Any:
        return torch.cuda.Stream(self.device)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def sync(self) -> None:
        torch.cuda.synchronize()

    def pinned(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def capture(self, work: Work, stream: Any) -> Work:
        self.sync()
        with self.on(stream):
            for _ in range(2):  # what the first calls load and allocate must not be captured
                work()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                out = work()
            finally:
                graph.capture_end()
            graph.replay()
            stream.synchronize()
        self.kept.append(graph)

        def replay() -> Any:
            graph.replay()
            return out

        return replay


def card_of(block: Block) -> HostCard:
    return CudaCard(block.kept) if block.cuda else HostCard(block.kept)


def mean_ms(card: HostCard, stream: Any, work: Work, times: int) -> float:
    """Milliseconds of `work` on the device, on average over so many in a row."""
    with card.on(stream):
        work()  # the first loads what it needs
        stream.synchronize()
        begun = time.perf_counter()
        for _ in range(times):
            work()
        stream.synchronize()
    return 1e3 * (time.perf_counter() - begun) / times
