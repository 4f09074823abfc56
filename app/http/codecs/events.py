"""Answers that begin before they end: a text, sent as server-sent events while it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from app.http.body import Send


def event(data: bytes) -> bytes:
    """One server-sent event. `data` is JSON, which has no line breaks."""
    return b"data: %s\n\n" % data


class Stream:
    """The events of one text, as fast as its client reads them.

    What has been written since the last event waits here as one text: a slow client holds no more than its own answer.
    """

    __slots__ = ("_event", "_last", "_news", "_pending", "begun", "sent")

    def __init__(self, event: Callable[[str, bool], bytes]) -> None:
        """`event`: makes an event of a piece of the text; whether it is the first."""
        self.begun = False  # the head of the answer has been given
        self._event = event
        self._pending = ""
        self.sent = 0  # characters of the text that are in events
        self._last: bytes | None = None
        self._news = asyncio.Event()

    def add(self, piece: str) -> None:
        """The text continues so."""
        self._pending += piece
        self._news.set()

    def rest(self, text: str) -> str:
        """What no event has of the text, which has ended. The caller puts it into the last one."""
        self._pending = ""
        return text[self.sent :]

    def end(self, last: bytes) -> None:
        """`last`: the events that end the answer."""
        self._last = last
        self._news.set()

    async def send(self, send: Send) -> None:
        """Send all events, as the body of the answer."""
        while True:
            await self._news.wait()
            self._news.clear()
            body, last = self._taken(), self._last
            await send({"type": "http.response.body", "body": body + (last or b""), "more_body": last is None})
            if last is not None:
                return

    def _taken(self) -> bytes:
        """What waits, as an event."""
        piece, self._pending = self._pending, ""
        if not piece:
            return b""
        first, self.sent = not self.sent, self.sent + len(piece)
        return self._event(piece, first)
