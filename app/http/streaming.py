"""Answers that are streams of server-sent events: what the rows write is sent while they run.

The answer begins with the first piece. An error before that is an ordinary answer; later, it is the last event.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from starlette.types import Scope

from app.contract import Answer, GeneratedText, Lease, Served
from app.http.codecs.base import Stream
from app.http.connection.connection import Exchange
from app.http.request import Request

#: `x-accel-buffering: no` keeps nginx from buffering the events.
_HEAD = (
    b"x-request-id: %s\r\ncontent-type: text/event-stream; charset=utf-8\r\ncache-control: no-cache\r\n"
    b"x-accel-buffering: no\r\n"
)


def stream_head(request: Request) -> bytes:
    """The header lines of a stream."""
    return _HEAD % request.request_id + request.lines


async def pieces(request: Request, served: Served, stream: Stream, lease: Lease) -> Answer:
    """Run a lease and send what its rows write, as fast as the client reads it. Returns the answer, which repeats all.

    What comes while the client does not read becomes one event a row. So it uses no more memory than its own answer.
    """
    carrier = cast("AsgiCarrier", request.connection)  # streams are not taken by the fast path
    before: dict[int, tuple[int, int]] = {}  # by row: the time of its last piece, and its tokens so far

    def add(row: int, piece: GeneratedText) -> None:
        """The row has written more."""
        now, klass = time.monotonic_ns(), request.klass
        if not before:
            served.first_piece(now - request.arrived, klass)
        if row in before:
            then, written = before[row]
            served.next_piece(now - then, piece.written - written, klass)
        before[row] = now, piece.written
        if not stream.waits:  # else it is among the outgoing ones
            carrier.outgoing.put_nowait(stream)
        stream.add(row, piece)

    lease.on_piece = add
    return await lease.run()


class AsgiCarrier:
    """Implements Carrier for one ASGI request. Unlike an HttpProtocol it can also carry a stream.

    `outgoing`: the stream, once for all pieces that wait in it when its turn comes; at last the status, header lines
    and body of the answer, or of the stream's end.
    """

    def __init__(self, scope: Scope) -> None:
        self.app_state: dict[str, Any] = scope["state"]
        self.client: tuple[str, int] | None = scope.get("client")
        self.outgoing: asyncio.Queue[Stream | tuple[int, bytes, bytes]] = asyncio.Queue()

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        exchange.response_complete = True
        self.outgoing.put_nowait((status, head, body))
