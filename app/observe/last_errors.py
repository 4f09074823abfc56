"""The last errors that requests were answered with, for the live page. Equal errors are one entry with a count."""

from __future__ import annotations

import time
from typing import Any

_MOST = 20  # entries
_LONGEST = 200  # characters of a message or name: either may quote what a client sent


class LastErrors:
    """Keeps the last 20 distinct errors. `total`: how many errors there have been."""

    def __init__(self) -> None:
        self.total = 0
        # (model, code, message) -> count, seconds since the epoch and `total` at the last of them; the newest is last.
        self._entries: dict[tuple[str, str, str], tuple[int, float, int]] = {}

    def add(self, model: str, code: str, message: str) -> None:
        key = model[:_LONGEST], code, message[:_LONGEST]
        count, _, _ = self._entries.pop(key, (0, 0.0, 0))
        self.total += 1
        self._entries[key] = count + 1, time.time(), self.total
        if len(self._entries) > _MOST:
            del self._entries[next(iter(self._entries))]

    def since(self, total: int) -> list[dict[str, Any]]:
        """Entries with an error after the first `total` ones, oldest first."""
        return [
            {"model": model, "code": code, "message": message, "count": count, "at": at}
            for (model, code, message), (count, at, number) in self._entries.items()
            if number > total
        ]
