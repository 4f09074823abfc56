"""Calls on the ASGI path, whose answers may be streams of server-sent events.

The answer begins with the first piece. An error before that is an ordinary answer; later, it is the last event.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from app.contract import Answer, Served
from app.http.body import Scope
from app.http.call import Call
from app.http.codecs.events import Stream, event
from app.http.connection.connection import Exchange

#: `x-accel-buffering: no` keeps nginx from buffering the events.
_HEAD = (
    b"x-request-id: %s\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"
)


class AsgiCarrier:
    """Implements Carrier for one ASGI request. Unlike an HttpProtocol it can also carry a stream."""

    def __init__(self, scope: Scope) -> None:
        self.app_state: dict[str, Any] = scope["state"]
        self.client: tuple[str, int] | None = scope.get("client")
        self.loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()
        self.answer: asyncio.Future[tuple[int, bytes, bytes]] = self.loop.create_future()
        self.stream: Stream | None = None  # once it has begun

    def begin(self, head: bytes, stream: Stream) -> None:
        """Begin the answer with the head of a stream, whose events follow. Called once; `send_answer` then ends it."""
        if not self.answer.done():
            self.stream = stream
            self.answer.set_result((200, head, b""))

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        if self.stream is not None:
            self.stream.end(body if status == 200 else event(body))
        elif not self.answer.done():  # it was cancelled with the request's task
            self.answer.set_result((status, head, body))


class StreamingCall(Call):
    """A call on the ASGI path."""

    __slots__ = ("_pieces",)

    connection: AsgiCarrier
    _pieces: dict[int, tuple[int, int]]  # by row: the time of its last piece, and its tokens so far

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._pieces = {}

    def on_piece(self, row: int, piece: Any, tokens: int) -> None:
        """The row has made more of its answer."""
        if (stream := self._stream) is None or self.served is None:
            return
        now = time.monotonic_ns()
        if not stream.begun:
            self._begin(stream)
            self.served.first_piece(now - self.arrived, self.klass)
        if (before := self._pieces.get(row)) is not None:
            self.served.next_piece(now - before[0], tokens - before[1], self.klass)
        self._pieces[row] = now, tokens
        stream.add(row, piece)

    @property
    def _stream(self) -> Stream | None:
        """None if the call is not streamed, or has been answered."""
        return None if self.decoded is None else self.decoded.stream

    def _begin(self, stream: Stream) -> None:
        if stream.begun:
            return
        stream.begun = True
        head = _HEAD % self.request_id
        if self.observer is not None:
            head += self.observer.begun()
        if self.resources.cors is not None:
            head += self.resources.cors.lines(self.headers.get(b"origin"))
        self.connection.begin(head, stream)

    def compress_and_succeed(self, served: Served, answer: Answer, body: bytes, json_length: int | None) -> None:
        if self._stream is not None:
            self.succeed(served, answer, body, json_length, None)
        else:
            super().compress_and_succeed(served, answer, body, json_length)

    def succeed(
        self, served: Served, answer: Answer, body: bytes, json_length: int | None, encoding: str | None
    ) -> None:
        if (stream := self._stream) is not None:
            self._begin(stream)
        super().succeed(served, answer, body, json_length, encoding)
