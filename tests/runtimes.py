"""Runtimes without a GPU, for a device of streams: one that looks for trouble, and others that simply run.

A FakeRuntime executes nothing when it is enqueued. `step` lets a random stream do its next piece of work, so streams
run in every order that events allow, a result exists only once its stream got there, and what happens too early sees
memory that is not filled yet. A HostRuntime has a thread for each stream: whole engines run on it. An InlineRuntime
does all at once, on the thread that enqueues it, as CUDA does with the Python of a model.
"""

from __future__ import annotations

import gc
import queue
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from graphs import GARBAGE, Graph

from app.engine.streams.worker_memory import WorkerMemory

Batch = Callable[[], list[torch.Tensor]]
TICK_NS = 1_000  # what a piece of work takes by the clock of a FakeRuntime


class Deadlock(AssertionError):
    """Somebody waits for what nothing that was enqueued will bring about."""


def broken() -> torch.AcceleratorError:
    """The error of a device that has failed for good."""
    error = torch.AcceleratorError("an illegal memory access was encountered")
    error.error_code = 700
    return error


@dataclass(eq=False)
class Mark:
    """One record of an event."""

    fired: bool = False
    at: int = 0


@dataclass(eq=False)
class FakeEvent:
    """Each record is a new mark, as those who waited before wait for the old one."""

    mark: Mark = field(default_factory=lambda: Mark(fired=True))  # never recorded: nothing to wait for, as on CUDA


@dataclass(eq=False)
class FakeStream:
    """`graphs`: captured on it and still there. They share a workspace with all that runs on it."""

    number: int
    priority: int
    work: deque[tuple[str, Any]] = field(default_factory=deque)
    graphs: weakref.WeakSet[Callable[[], None]] = field(default_factory=weakref.WeakSet)

    @property
    def ready(self) -> bool:
        """Whether it can do something now."""
        return bool(self.work) and not (self.work[0][0] == "wait" and not self.work[0][1].fired)


class _StandIn:
    """What all runtimes here have in common."""

    uuid = ""
    device = torch.device("cpu")

    def attach(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def drawn(self) -> int:
        return 0


class FakeRuntime(_StandIn):
    """The methods of streams.cuda.CudaRuntime, on one thread. `breaks_at`: the piece of work at which it fails."""

    name = "fake"

    def __init__(self, seed: int = 0, breaks_at: int | None = None) -> None:
        self.random = random.Random(seed)
        self.breaks_at = breaks_at
        self.broken = False
        self.streams: list[FakeStream] = []
        self.home: deque[Callable[[], object]] = deque()  # work on the default stream, which moves when waited for
        self.done = 0
        self.captures = 0  # that are open
        self.drawings = 0  # batches that have drawn random numbers
        self.pinnings = 0  # allocations of pinned memory
        self._running: FakeStream | None = None
        self._graphs: dict[int, weakref.WeakSet[Graph]] = {}  # by their pool
        self.replayed: weakref.WeakSet[Graph] = weakref.WeakSet()

    def clock(self) -> int:
        """Nanoseconds: the time that events note."""
        return self.done * TICK_NS

    def settle(self) -> None:
        while self.home:
            self.home.popleft()()

    def stream(self, priority: int = 0) -> FakeStream:
        self.streams.append(FakeStream(len(self.streams), priority))
        return self.streams[-1]

    def event(self, timed: bool = False) -> FakeEvent:
        return FakeEvent()

    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        """In the middle of work of this stream, it has got there and fires at once."""
        self._check()
        event.mark = Mark()
        if stream is self._running:
            event.mark.fired, event.mark.at = True, self.clock()
        else:
            stream.work.append(("fire", event.mark))

    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        self._check()
        stream.work.append(("wait", event.mark))

    def enqueue(self, stream: FakeStream, work: Callable[[], None]) -> None:
        self._check()
        assert not stream.graphs, "work on a stream whose workspace graphs use that may be running"
        stream.work.append(("run", work))

    def fired(self, event: FakeEvent) -> bool:
        return event.mark.fired

    def synchronize(self, event: FakeEvent) -> None:
        mark = event.mark
        while not mark.fired:
            self._check()
            if not self.step() and not self.broken:
                raise Deadlock("nothing that is enqueued fires this event")
        self._check()

    def elapsed_ns(self, first: FakeEvent, last: FakeEvent) -> int:
        assert first.mark.fired
        assert last.mark.fired
        return last.mark.at - first.mark.at

    def graph_pool(self) -> int:
        self._graphs[len(self._graphs)] = weakref.WeakSet()
        return len(self._graphs) - 1

    def capture(
        self, stream: FakeStream, pool: int, work: Batch, kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        """The memory of all graphs of a pool is overwritten by each replay: it may overlap."""
        self._check()
        assert not gc.isenabled(), "the collector might free memory of the device"
        assert WorkerMemory.lock.locked(), "another capture may begin, or a graph be destroyed"
        self.captures += 1
        try:
            graph = Graph(work)
        except BaseException:
            kept.append("what a failed capture leaves")
            raise
        finally:
            self.captures -= 1
        self._graphs[pool].add(graph)
        self.latest = graph

        def replay() -> None:
            for other in self._graphs[pool]:
                other.spoil()
            graph.replay()
            self.replayed.add(graph)

        stream.graphs.add(replay)
        return replay, graph.outputs

    def draw(self, x: torch.Tensor) -> None:
        """For a model's batch, which draws random numbers."""
        self.drawings += 1

    def drawn(self) -> int:
        return self.drawings

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self._check()
        return torch.full(shape, 0 if dtype == torch.uint8 else GARBAGE).to(dtype)

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        self.pinnings += 1
        return self.empty(shape, dtype)

    def step(self) -> bool:
        """One stream does its next piece of work; False if none can."""
        ready = [stream for stream in self.streams if stream.ready]
        if not ready or self.broken:
            return False
        stream = self.random.choice(ready)
        kind, what = stream.work.popleft()
        self.done += 1
        if self.done == self.breaks_at:
            self.broken = True
            return False
        if kind == "run":
            outer, self._running = self._running, stream
            with torch.inference_mode():
                what()
            self._running = outer
        elif kind == "fire":
            what.fired, what.at = True, self.clock()
        return True

    def _check(self) -> None:
        if self.broken:
            raise broken()


class HostEvent:
    """`mark` is of the latest record: whether it has fired, and when."""

    def __init__(self) -> None:
        self.mark = HostMark()
        self.mark.fire()


class HostMark:
    def __init__(self) -> None:
        self.fired = threading.Event()
        self.at = 0

    def fire(self) -> None:
        self.at = time.perf_counter_ns()
        self.fired.set()


class HostStream:
    """A thread that does one thing after another."""

    def __init__(self) -> None:
        self.work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._main, daemon=True)
        self.thread.start()

    def _main(self) -> None:
        torch.set_num_threads(1)
        with torch.inference_mode():
            while (work := self.work.get()) is not None:
                work()


class HostRuntime(_StandIn):
    """The methods of streams.cuda.CudaRuntime, with threads. Use as a context manager, which ends them.

    A thread that has not called `attach` may use no stream, since on CUDA it would use another device's.
    """

    name = "host"
    clock = staticmethod(time.perf_counter_ns)

    def __init__(self) -> None:
        self.streams: list[HostStream] = []
        self._attached: set[int] = set()

    def attach(self) -> None:
        self._attached.add(threading.get_ident())

    def __enter__(self) -> HostRuntime:
        return self

    def __exit__(self, *exc: object) -> None:
        for stream in self.streams:
            stream.work.put(None)
        for stream in self.streams:
            stream.thread.join(10)
            assert not stream.thread.is_alive()

    def stream(self, priority: int = 0) -> HostStream:
        self.streams.append(HostStream())
        return self.streams[-1]

    def event(self, timed: bool = False) -> HostEvent:
        return HostEvent()

    def record(self, event: HostEvent, stream: HostStream) -> None:
        event.mark = HostMark()
        if threading.current_thread() is stream.thread:  # in the middle of its work
            event.mark.fire()
        else:
            assert threading.get_ident() in self._attached
            stream.work.put(event.mark.fire)

    def wait(self, stream: HostStream, event: HostEvent) -> None:
        stream.work.put(event.mark.fired.wait)

    def enqueue(self, stream: HostStream, work: Callable[[], None]) -> None:
        stream.work.put(work)

    def fired(self, event: HostEvent) -> bool:
        return event.mark.fired.is_set()

    def synchronize(self, event: HostEvent) -> None:
        assert event.mark.fired.wait(30), "an event that never fires"

    def elapsed_ns(self, first: HostEvent, last: HostEvent) -> int:
        return last.mark.at - first.mark.at

    def graph_pool(self) -> None:
        return None

    def capture(
        self, stream: HostStream, pool: Any, work: Batch, kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        graph = Graph(work)
        return graph.replay, graph.outputs

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype)

    pinned = empty


class InlineRuntime(HostRuntime):
    """The methods of streams.cuda.CudaRuntime without streams: all is done at once, and events fire at once.

    A thread may not wait for events while it captures, as on CUDA.
    """

    def __init__(self) -> None:
        super().__init__()
        self._capturing = threading.local()

    def synchronize(self, event: HostEvent) -> None:
        if getattr(self._capturing, "now", False):
            raise RuntimeError("operation not permitted when stream is capturing")
        super().synchronize(event)

    def capture(
        self, stream: Any, pool: Any, work: Batch, kept: list[Any]
    ) -> tuple[Callable[[], None], list[torch.Tensor]]:
        self._capturing.now = True
        try:
            return super().capture(stream, pool, work, kept)
        finally:
            self._capturing.now = False

    def stream(self, priority: int = 0) -> Any:
        return object()

    def record(self, event: HostEvent, stream: Any) -> None:
        assert threading.get_ident() in self._attached
        event.mark = HostMark()
        event.mark.fire()

    def wait(self, stream: Any, event: HostEvent) -> None:
        pass

    def enqueue(self, stream: Any, work: Callable[[], None]) -> None:
        work()
