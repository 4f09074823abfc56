"""Streamed answers: the pieces that rows produce are sent as server-sent events while the rows run."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from app.http.body import Send


def event(data: bytes) -> bytes:
    """One server-sent event. `data` is JSON, which has no line breaks."""
    return b"data: %s\n\n" % data


class Stream:
    """The events of one call, sent as fast as its client reads them.

    The pieces of a row wait here and become one event when the client has read the one before. So a slow client uses no
    more memory than its own answer.
    """

    __slots__ = ("_event", "_last", "_news", "_pending", "begun", "sent")

    def __init__(self, event: Callable[[int, list[Any], bool], bytes]) -> None:
        """`event(row, pieces, first)` makes one event; `first`: of this row. A piece begins with its text."""
        self.begun = False  # the head of the answer has been sent
        self._event = event
        self._pending: dict[int, list[Any]] = {}  # by row
        self.sent: Counter[int] = Counter()  # by row: the characters in events so far
        self._last: bytes | None = None
        self._news = asyncio.Event()

    def add(self, row: int, piece: Any) -> None:
        """Append a piece of the row."""
        self._pending.setdefault(row, []).append(piece)
        self._news.set()

    def rest(self, row: int) -> int:
        """The row has ended. Returns how much of it is in events; the caller puts the rest into the last events."""
        self._pending.pop(row, None)
        return self.sent[row]

    def end(self, last: bytes) -> None:
        """End the stream with these events."""
        self._last = last
        self._news.set()

    async def send(self, send: Send, fail: Callable[[Exception], None]) -> None:
        """Send the events as the body of the answer, until `end`. If making an event raises, `fail` must call `end`."""
        while True:
            await self._news.wait()
            self._news.clear()
            body = b""
            try:
                for row in sorted(self._pending):
                    body += self._taken(row)
            except Exception as exc:
                fail(exc)
            last = self._last
            await send({"type": "http.response.body", "body": body + (last or b""), "more_body": last is None})
            if last is not None:
                return

    def _taken(self, row: int) -> bytes:
        """One event of all waiting pieces of a row."""
        pieces = self._pending.pop(row)
        first, self.sent[row] = not self.sent[row], self.sent[row] + sum(len(piece[0]) for piece in pieces)
        return self._event(row, pieces, first)
