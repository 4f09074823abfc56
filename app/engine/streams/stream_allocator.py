"""Hands out the streams of a device: to work on, and to capture graphs on (docs/theory/streams.md, Which streams).

torch has 32 of each priority. Streams to work on may be shared; a capture stream never is, since graphs use its cuBLAS
workspace: each model has its own for each worker, while there are some, and its graphs there are freed together.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

_OF_TORCH = 32


class StreamAllocator:
    """`make` creates a stream of a priority. Models are loaded and freed on different threads, hence the lock."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._free: list[tuple[int, Any]] = []  # priority, stream
        self._made: list[Any] = []
        self._working: dict[int, deque[Any]] = {}  # by priority

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
