"""Streamed answers: the pieces that rows produce are sent as server-sent events while the rows run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple


def event(data: bytes) -> bytes:
    """One server-sent event. `data` is JSON, which has no line breaks."""
    return b"data: %s\n\n" % data


class GeneratedText(NamedTuple):
    """A text or a piece of one. `reason`: why it ended with it, "stop" or "length"; "": it has not.

    `read` and `written`: tokens of the prompt, and of the text so far.
    """

    text: str
    reason: str
    read: int
    written: int


class Stream:
    """The events of one call. The pieces of a row wait here until they become one event."""

    def __init__(self, events: Callable[[int, GeneratedText, bool], bytes]) -> None:
        """`events(row, piece, first)` makes the events of a piece; `first`: of this row."""
        self._events = events
        self._pending: dict[int, list[GeneratedText]] = {}  # by row
        self.sent: Counter[int] = Counter()  # by row: the characters in events so far

    def add(self, row: int, piece: tuple[str, str, int, int]) -> None:
        """Append a piece of the row: the fields of a GeneratedText."""
        self._pending.setdefault(row, []).append(GeneratedText(*piece))

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
        piece = pieces[-1]._replace(text="".join(piece.text for piece in pieces))
        first, self.sent[row] = not self.sent[row], self.sent[row] + len(piece.text)
        return self._events(row, piece, first)
