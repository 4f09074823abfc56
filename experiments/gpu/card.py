"""A device as torch has it: streams, events, graphs, pinned memory. `HostCard` only tries the measurements on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from experiments.gpu.blocks import Block, Data

now = time.perf_counter
Work = Callable[[], Any]
Replay = Callable[[], object]


class HostCard:
    """The interface, on a CPU: everything is done when it is called, and nothing overlaps."""

    name = "none: tried on the CPU"

    def __init__(self, kept: list[Any]) -> None:
        self.device = torch.device("cpu")
        self.half = torch.float32  # half precision is slow there
        self.kept = kept

    def stream(self, priority: int = 0) -> Any:
        return SimpleNamespace(wait_event=lambda event: None, synchronize=lambda: None)

    def event(self, timed: bool = False, blocking: bool = True) -> Any:
        return _HostEvent()

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        """Within it, what is called runs on the stream."""
        return nullcontext()

    def sync(self) -> None:
        """Wait until the device has nothing to do."""

    def pool(self) -> Any:
        """A memory pool for graphs that never run at the same time."""
        return None

    def busy(self, us: float) -> None:
        """Keep the current stream busy for so long."""
        time.sleep(us / 1e6)

    def pinned(self, *shape: int) -> torch.Tensor:
        """Bytes of host memory that the device reads by itself."""
        return torch.empty(shape, dtype=torch.uint8)

    def some_sms(self, number: int) -> Any:
        """A stream that runs on so many multiprocessors only. Raises RuntimeError where there is no such thing."""
        raise RuntimeError("no green contexts on a CPU")

    def capture(self, work: Work, stream: Any, pool: Any) -> tuple[Replay, Any]:
        """A graph of `work`: its replay, for within `on`, and the tensors that each replay writes."""
        out = work()

        def replay() -> None:
            with torch.inference_mode():
                out.copy_(work())

        return replay, out


class _HostEvent:
    def __init__(self) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = now()

    def synchronize(self) -> None: ...

    def query(self) -> bool:
        return True

    def elapsed_time(self, other: _HostEvent) -> float:
        return (other.at - self.at) * 1e3


class CudaCard(HostCard):
    """GPU number 0."""

    def __init__(self, kept: list[Any]) -> None:
        super().__init__(kept)
        self.device = torch.device("cuda", 0)
        self.half = torch.float16
        self.name = torch.cuda.get_device_name(0)
        start, end = self.event(timed=True), self.event(timed=True)
        for _ in range(2):  # the first call loads the kernel
            start.record()
            torch.cuda._sleep(10_000_000)
            end.record()
            end.synchronize()
        self._cycles_per_us = 1e4 / start.elapsed_time(end)

    def stream(self, priority: int = 0) -> Any:
        return torch.cuda.Stream(self.device, priority=priority)

    def event(self, timed: bool = False, blocking: bool = True) -> Any:
        return torch.cuda.Event(enable_timing=timed, blocking=blocking)

    def on(self, stream: Any) -> AbstractContextManager[Any]:
        return torch.cuda.stream(stream)

    def sync(self) -> None:
        torch.cuda.synchronize()

    def pool(self) -> Any:
        return torch.cuda.graph_pool_handle()

    def busy(self, us: float) -> None:
        torch.cuda._sleep(int(us * self._cycles_per_us))

    def pinned(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.uint8, pin_memory=True)

    def some_sms(self, number: int) -> Any:
        from torch.cuda.green_contexts import GreenContext

        self.kept.append(GreenContext.create(num_sms=number, device_id=0))
        return self.kept[-1].Stream()

    def capture(self, work: Work, stream: Any, pool: Any) -> tuple[Replay, Any]:
        self.sync()
        with self.on(stream):
            for _ in range(2):  # what the first calls load and allocate must not be captured
                work()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                out = work()
            finally:
                graph.capture_end()
            graph.replay()
            stream.synchronize()
        self.kept.append(graph)
        return graph.replay, out


def card_of(block: Block) -> HostCard:
    return CudaCard(block.kept) if block.cuda else HostCard(block.kept)


# times


def spread_us(seconds: Sequence[float]) -> Data:
    """Percentiles in microseconds."""
    places = (("p50", 50), ("p99", 99), ("max", 100))
    return {name: round(float(np.percentile(seconds, at)) * 1e6, 1) for name, at in places}


def timed(work: Work, times: int, before: Work = lambda: None) -> list[float]:
    """The seconds of each call by the wall; `before` is called before each, and not counted."""
    found = []
    for _ in range(times):
        before()
        begun = now()
        work()
        found.append(now() - begun)
    return found


def device_ms(card: HostCard, stream: Any, work: Work, times: int) -> float:
    """Median milliseconds of `work` on the device."""
    start, end = card.event(timed=True), card.event(timed=True)
    found = []
    with card.on(stream):
        for _ in range(times):
            start.record(stream)
            work()
            end.record(stream)
            end.synchronize()
            found.append(start.elapsed_time(end))
    return round(float(np.median(found)), 4)
