"""The threads, workers and streams of a device of streams, and its health.

A launcher thread enqueues work on streams. Each worker has one, and another copies rows as they arrive. Some models
block the thread that launches them: `.item()`, `.cpu()` or a branch on a value wait for the device in the middle of a
batch, and rows without a largest length are first put together in host memory. That only delays other units of the same
worker, which run behind in any case. Other threads wait for events, so that launchers need not.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from app.engine.streams.cuda import CudaRuntime
from app.scheduler.types import WorkerSpec

log = logging.getLogger("starling.engine")

CLOSED = "the device has been closed"
_OF_TORCH = 32  # streams of each priority

ThreadMessage = tuple[Callable[..., None], tuple[Any, ...]]


class Health:
    """Whether the device works. `lost`: why not, once it has failed. Any thread may set it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost: str | None = None
        #: Objects kept for ever once the device is lost, because it may still read and write their memory. Besides,
        #: freeing pinned memory then makes torch end the process.
        self.held: list[Any] = []

    def lose(self, exc: BaseException) -> None:
        if self.lost is None:
            self.lost = f"{type(exc).__name__}: {exc}"
            log.error("%s: the device has failed: %s", self._name, self.lost)


class DeviceThread:
    """A thread that calls the functions sent to it, in order. Any thread may send.

    If a function raises, the device counts as lost; the thread continues.
    """

    def __init__(self, name: str, runtime: CudaRuntime, health: Health) -> None:
        self._runtime = runtime
        self._health = health
        self.messages: queue.SimpleQueue[ThreadMessage | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # so that nothing is sent after the end
        self._ended = False
        # A daemon: a device that hangs must not keep a process alive that has been told to end.
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def send(self, function: Callable[..., None], *args: Any) -> bool:
        """Send a function. False once the thread is ending: then the function is not called."""
        with self._lock:
            if not self._ended:
                self.messages.put((function, args))
            return not self._ended

    def end(self) -> None:
        """End the thread after the functions in its queue."""
        with self._lock:
            self._ended = True
            self.messages.put(None)

    def next(self) -> bool:
        """Handle one message, waiting for it; False at the end."""
        message = self.messages.get()
        if message is None:
            return False
        function, args = message
        try:
            function(*args)
        except BaseException as exc:
            self._health.lose(exc)
        return True

    def _main(self) -> None:
        self._runtime.attach()
        with torch.inference_mode():
            while self.next():
                pass


class StreamAllocator:
    """Hands out the streams of a device: to work on, and to capture graphs on (docs/theory/streams.md, Which streams).

    Streams to work on may be shared; a capture stream never is, since graphs use its cuBLAS workspace: each model has
    its own for each worker, while there are some, and its graphs there are freed together. `make` creates a stream of a
    priority. Models are loaded and freed on different threads, hence the lock.
    """

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._unused: dict[int, list[Any]] = {}  # by priority
        self._working: dict[int, deque[Any]] = {}

    def take(self, priority: int) -> Any:
        """A stream to work on. If torch has no unused one, it is shared with other work, but never a capture stream."""
        stream = self.take_unused(priority)
        with self._lock:
            working = self._working.setdefault(priority, deque())
            if stream is None:
                stream = working.popleft() if working else self._make(priority)
            working.append(stream)
        return stream

    def take_unused(self, priority: int) -> Any:
        """A stream that is not in use; None if torch has no more."""
        with self._lock:
            if priority not in self._unused:
                made = [self._make(priority) for _ in range(_OF_TORCH)]  # twice the same if others make some meanwhile
                self._unused[priority] = [*dict.fromkeys(made)]
            unused = self._unused[priority]
            return unused.pop(0) if unused else None

    def give_back(self, priority: int, stream: Any) -> None:
        with self._lock:
            self._unused[priority].append(stream)


@dataclass(eq=False)
class StreamWorker:
    """A worker: a stream to compute on, a stream that copies results to the host, a launcher and a completer thread.

    The launcher launches the steps of its units, and the completer waits for them, the oldest first. `computed`: when
    its last step had computed, by the host's clock.
    """

    index: int
    spec: WorkerSpec
    runtime: CudaRuntime
    streams: StreamAllocator
    health: Health
    computed: int = 0

    def __post_init__(self) -> None:
        self.stream, self.out = (self.streams.take(self.spec.priority) for _ in range(2))
        self.launcher, self.completer = (
            DeviceThread(f"{name} {self.index}", self.runtime, self.health) for name in ("launcher", "worker")
        )

    @cached_property
    def ends(self) -> Any:
        """A stream for its completer's work, which must not wait for results of later steps queued on `out`."""
        return self.streams.take(self.spec.priority)
