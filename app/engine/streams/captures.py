"""The streams of a device: to work on, and to capture graphs on.

torch has 32 streams of a priority, which it hands out in turn, to whoever asks: beyond them, and to models that make
streams of their own, it gives the same again. For ordinary work that only costs overlap. For capturing it matters,
because a graph keeps the address of its capture stream's cuBLAS workspace. So

    1. graphs that may run at the same time must not have been captured on the same stream;
    2. a graph that is destroyed frees the workspace of its capture stream, also for others that were captured there.

Each model therefore has a capture stream of its own for each worker, and its graphs there go together. The streams are
enough for 28 models on one worker, or 13 on two; a model beyond that runs without graphs, which the log says.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_OF_TORCH = 32


class Streams:
    """`make` makes a stream of a priority. Models are loaded on one thread and freed on another, hence the lock."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: list[tuple[int, Any]] = []  # priority, stream
        self._made: list[Any] = []
        self._working: dict[int, deque[Any]] = {}  # by priority

    def take(self, priority: int) -> Any:
        """A stream to work on: where torch has no other, one that others work on too, but none to capture on."""
        stream = self.take_unused(priority)
        with self._lock:
            working = self._working.setdefault(priority, deque())
            if stream is None:
                stream = working.popleft() if working else self._make(priority)
            working.append(stream)
        return stream

    def take_unused(self, priority: int) -> Any:
        """A stream that nobody here uses; None if torch has no other."""
        with self._lock:
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

    def give_back(self, priority: int, stream: Any) -> None:
        with self._lock:
            self._free.append((priority, stream))
