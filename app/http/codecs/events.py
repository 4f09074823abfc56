"""Streamed answers: the pieces that rows produce are sent as server-sent events while the rows run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any


def event(data: bytes) -> bytes:
    """One server-sent event. `data` is JSON, which has no line breaks."""
    return b"data: %s\n\n" % data


class Stream:
    """The events of one call. The pieces of a row wait here until they become one event."""

    __slots__ = ("_event", "_pending", "sent")

    def __init__(self, event: Callable[[int, list[Any], bool], bytes]) -> None:
        """`event(row, pieces, first)` makes one event; `first`: of this row. A piece begins with its text."""
        self._event = event
        self._pending: dict[int, list[Any]] = {}  # by row
        self.sent: Counter[int] = Counter()  # by row: the characters in events so far

    def add(self, row: int, piece: Any) -> None:
        """Append a piece of the row."""
        self._pending.setdefault(row, []).append(piece)

    @property
    def waits(self) -> bool:
        """Whether there are pieces that have not become events."""
        return bool(self._pending)

    def waiting(self) -> bytes:
        """The events of all waiting pieces."""
        return b"".join(self._taken(row) for row in sorted(self._pending))

    def rest(self, row: int) -> int:
        """The row has ended. Returns how much of it is in events; the caller puts the rest into the last events."""
        self._pending.pop(row, None)
        return self.sent[row]

    def _taken(self, row: int) -> bytes:
        """One event of all waiting pieces of a row."""
        pieces = self._pending.pop(row)
        first, self.sent[row] = not self.sent[row], self.sent[row] + sum(len(piece[0]) for piece in pieces)
        return self._event(row, pieces, first)
