"""Answers that are streams of server-sent events: what the rows write is sent while they run.

The answer begins with the first piece. An error before that is an ordinary answer; later, it is the last event.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, cast

from app.contract import Answer, Lease, Served, Waiter, wait
from app.http.body import Scope
from app.http.codecs.events import Stream
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
    news = _News(request, served, stream)
    lease.on_piece = news.add
    lease.submit(news)
    while not isinstance(answer := await wait(news), Answer):
        await wait(Sending(carrier, stream_head(request), stream))
    return answer


class _News:
    """What the rows have written, for the coroutine that sends it. Implements contract.Pending, and Waiter of a lease.

    It gives None when there are pieces, at last the answer.
    """

    def __init__(self, request: Request, served: Served, stream: Stream) -> None:
        self._request = request
        self._served = served
        self._stream = stream
        self._before: dict[int, tuple[int, int]] = {}  # by row: the time of its last piece, and its tokens so far
        self._waiter: Waiter | None = None
        self._outcome: Answer | BaseException | None = None

    def add(self, row: int, piece: Any, tokens: int) -> None:
        """The row has written more."""
        now, klass = time.monotonic_ns(), self._request.klass
        if not self._before:
            self._served.first_piece(now - self._request.arrived, klass)
        if (before := self._before.get(row)) is not None:
            self._served.next_piece(now - before[0], tokens - before[1], klass)
        self._before[row] = now, tokens
        self._stream.add(row, piece)
        self._tell()

    def set_result(self, answer: Answer) -> None:
        self._outcome = answer
        self._tell()

    def set_exception(self, error: BaseException) -> None:
        self._outcome = error
        self._tell()

    def submit(self, waiter: Waiter) -> None:
        self._waiter = waiter
        if self._outcome is not None or self._stream.waits:
            self._tell()

    def abandon(self, heir: Waiter) -> None:
        self._waiter = None
        heir.set_result(None)

    def _tell(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is None:  # it is sending, or its client has left
            return
        if isinstance(self._outcome, BaseException):
            waiter.set_exception(self._outcome)
        else:
            waiter.set_result(self._outcome)


class Sending:
    """A part of a stream on its way to the client. Implements contract.Pending. `head`: for the first part.

    It is made of all that waits when it is sent, so that the rows of one step share a write.
    """

    def __init__(self, carrier: AsgiCarrier, head: bytes, stream: Stream) -> None:
        self.head = head
        self._carrier = carrier
        self._stream = stream
        self._waiter: Waiter | None = None

    def submit(self, waiter: Waiter) -> None:
        self._waiter = waiter
        self._carrier.outgoing.put_nowait(self)

    def abandon(self, heir: Waiter) -> None:
        self._waiter = None
        heir.set_result(None)

    def data(self) -> bytes | None:
        """The events; None if they could not be made, and the request goes on with the error."""
        try:
            return self._stream.waiting()
        except Exception as error:
            if self._waiter is not None:
                self._waiter.set_exception(error)
            return None

    def sent(self) -> None:
        """The client has read enough for the next part."""
        if self._waiter is not None:
            self._waiter.set_result(None)


class AsgiCarrier:
    """Implements Carrier for one ASGI request. Unlike an HttpProtocol it can also carry a stream."""

    def __init__(self, scope: Scope) -> None:
        self.app_state: dict[str, Any] = scope["state"]
        self.client: tuple[str, int] | None = scope.get("client")
        #: Parts of a stream, one at a time, and at last (status, header lines, body).
        self.outgoing: asyncio.Queue[Sending | tuple[int, bytes, bytes]] = asyncio.Queue()

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        exchange.response_complete = True
        self.outgoing.put_nowait((status, head, body))
