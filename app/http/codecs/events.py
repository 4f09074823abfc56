"""Answers that begin before they end: what rows make is sent as server-sent events while they run."""

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
    """The events of one call, as fast as its client reads them.

    What a row has made since its last event waits here: a slow client holds no more than its own answer.
    """

    __slots__ = ("_event", "_last", "_news", "_pending", "_size", "begun", "sent")

    def __init__(self, event: Callable[[int, list[Any], bool], bytes], size: Callable[[Any], int] = len) -> None:
        """`event`: makes one event of some pieces of a row; whether they are its first. `size`: how long a piece is."""
        self.begun = False  # the head of the answer has been given
        self._event = event
        self._size = size
        self._pending: dict[int, list[Any]] = {}  # by row
        self.sent: Counter[int] = Counter()  # by row: how much of what it has made is in events
        self._last: bytes | None = None
        self._news = asyncio.Event()

    def add(self, row: int, piece: Any) -> None:
        """The row has made this after what it had made before."""
        self._pending.setdefault(row, []).append(piece)
        self._news.set()

    def rest(self, row: int) -> int:
        """The row has ended: how much of it is in events. The caller puts all behind that into the last ones."""
        self._pending.pop(row, None)
        return self.sent[row]

    def end(self, last: bytes) -> None:
        """`last`: the events that end the answer."""
        self._last = last
        self._news.set()

    async def send(self, send: Send, fail: Callable[[Exception], None]) -> None:
        """Send all events, as the body of the answer. `fail` is to end the stream: an event could not be made."""
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
        """What waits of a row, as an event."""
        pieces = self._pending.pop(row)
        first, self.sent[row] = not self.sent[row], self.sent[row] + sum(map(self._size, pieces))
        return self._event(row, pieces, first)
