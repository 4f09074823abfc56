"""The streams of a device: made, lent, and used again; and which of them graphs are captured on.

torch has 32 streams of a priority, which it hands out in turn, to whoever asks: beyond them, and to models that make
streams of their own, it gives the same again. For ordinary work that only costs overlap. For capturing it matters,
because a graph keeps the address of its capture stream's cuBLAS workspace. So

    1. graphs that may run at the same time must not have been captured on the same stream;
    2. a graph that is destroyed frees the workspace of its capture stream, also for others that were captured there.

While there are streams left, each model has its own for each worker. Then models share those of their worker, whose
units run one after another, and the graphs of a model that is unloaded stay until the last that shares them has gone.

Sharing keeps graphs for models beyond the first few: with 6 workers three models have capture streams of their own,
with 4 workers five. The next model would otherwise launch hundreds of kernels a unit, where a graph is one call. What
sharing costs is memory: graphs that stay after their model was unloaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

_OF_TORCH = 32


@dataclass(eq=False)
class CaptureStream:
    """A stream that one worker's graphs are captured on. `kept`: graphs of models that have gone, see rule 2."""

    worker: int
    priority: int
    stream: Any
    users: int = 1
    kept: list[Any] = field(default_factory=list)


class Streams:
    """Models are loaded on one thread and freed on another, hence the lock."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: list[tuple[int, Any]] = []  # priority, stream
        self._made: list[Any] = []
        self._captures: list[CaptureStream] = []

    def take(self, priority: int) -> Any:
        """A stream; one that was used before, where there is one."""
        with self._lock:
            stream = self._unused(priority)
            return self._make(priority) if stream is None else stream

    def give_back(self, priority: int, stream: Any) -> None:
        with self._lock:
            self._free.append((priority, stream))

    def capture(self, worker: int, priority: int) -> CaptureStream | None:
        """Where a model's graphs for this worker may be captured; None if no stream is free or may be shared."""
        with self._lock:
            stream = self._unused(priority)
            if stream is not None:
                made = CaptureStream(worker, priority, stream)
                self._captures.append(made)
                return made
            fit = (one for one in self._captures if one.worker == worker)
            shared = min(fit, key=_users, default=None)
            if shared is not None:
                shared.users += 1
            return shared

    def release(self, capture: CaptureStream, graphs: dict[Any, Any]) -> None:
        """A model's graphs are to go: at once, or with the last that were captured there. Empties `graphs`."""
        with self._lock:
            capture.users -= 1
            capture.kept += graphs.values()
            graphs.clear()
            if not capture.users:
                while capture.kept:  # before the stream is anybody else's; one by one, so that others get the
                    capture.kept.pop()  # interpreter lock in between: a graph takes its time to go
                self._captures.remove(capture)
                self._free.append((capture.priority, capture.stream))

    def _unused(self, priority: int) -> Any:
        """A stream that nobody here uses; None if torch has no other."""
        for at, (theirs, stream) in enumerate(self._free):
            if theirs == priority:
                del self._free[at]
                return stream
        for _ in range(_OF_TORCH):
            stream = self._make(priority)
            if stream not in self._made:
                self._made.append(stream)
                return stream
        return None


def _users(capture: CaptureStream) -> int:
    return capture.users
