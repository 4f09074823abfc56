"""The threads and the workers of a device of streams, and whether it works.

A launcher enqueues work on streams. Each worker has one, and one more copies rows as they arrive. Some models block the
thread that launches them: `.item()`, `.cpu()` or a branch on a value wait for the device in the midst of a batch, and
rows without a largest length are put together in host memory first. That holds up what else their worker was given,
which runs behind them in any case, and nothing else. Other threads wait for events, so that no launcher has to.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from app.engine.streams.captures import Streams
from app.engine.streams.cuda import CudaRuntime
from app.scheduler.types import WorkerSpec

log = logging.getLogger("starling.engine")

CLOSED = "the device has been closed"

Message = tuple[Callable[..., None], tuple[Any, ...]]


class Health:
    """Whether the device works. `lost`: why not, once it has failed. Any thread may say so."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.lost: str | None = None
        #: Kept for good once it is lost: what it may still read and write, for all that anybody knows. Besides, torch
        #: cannot take pinned memory back then: it ends the process.
        self.held: list[Any] = []

    def lose(self, exc: BaseException) -> None:
        if self.lost is None:
            self.lost = f"{type(exc).__name__}: {exc}"
            log.error("%s: the device has failed: %s", self._name, self.lost)


class DeviceThread:
    """Calls the functions that it is sent, in order. Any thread may send.

    What a function raises is the end of the device, and does not end the thread.
    """

    def __init__(self, name: str, runtime: CudaRuntime, health: Health) -> None:
        self._runtime = runtime
        self._health = health
        self.messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing is sent behind the end
        self._ended = False
        # A daemon: a device that hangs must not keep a process alive that has been told to end.
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def send(self, function: Callable[..., None], *args: Any) -> bool:
        """False once it has been told to end: the function will not be called."""
        with self._lock:
            if not self._ended:
                self.messages.put((function, args))
            return not self._ended

    def end(self) -> None:
        """End the thread after what it has."""
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


class StreamWorker:
    """The stream that it computes on, and the one that its results leave on.

    Its launcher is sent its units, and its completer waits for their steps, the oldest first. `computed`: when its last
    step had computed, by the host's `clock`.
    """

    def __init__(
        self,
        index: int,
        spec: WorkerSpec,
        runtime: CudaRuntime,
        streams: Streams,
        health: Health,
        clock: Callable[[], int],
    ) -> None:
        self.index = index
        self.spec = spec
        self.runtime = runtime
        self.health = health
        self.clock = clock
        self._streams = streams
        self.stream = streams.take(spec.priority)
        self.out = streams.take(spec.priority)
        self.launcher = DeviceThread(f"launcher {index}", runtime, health)
        self.completer = DeviceThread(f"worker {index}", runtime, health)
        self.computed = 0

    @cached_property
    def ends(self) -> Any:
        """For its completer: what must not wait for the steps behind, whose results have places on `out` already."""
        return self._streams.take(self.spec.priority)
