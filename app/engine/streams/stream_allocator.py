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
