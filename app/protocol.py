"""uvicorn's HTTP protocol, with a short way for requests that need no ASGI task.

The short way. A plain POST for which the handler has an `Exchange` is collected here and given to it; the exchange
answers when it likes, in one write. It costs neither a task nor a scope, nor a future. What is rare goes uvicorn's way
unchanged: chunked bodies, Expect, Content-Encoding, upgrades, requests behind another one on the same connection,
HTTP/1.0, `Connection: close`, large bodies, slow readers, and everything while there is an access log.

Four things differ from uvicorn on its own way too. tests/test_protocol.py checks the internals that all this relies on.

Answers in one write. uvicorn writes the head of an answer and then its body: two segments, and some clients that only
look at the status (tritonclient.aio's `is_model_ready`) never release a connection whose body came apart from its head.

First requests. When the server stops, uvicorn closes connections on which it has seen no request. The first request of
a connection that was just opened may be on its way, so such a connection stays open for a moment longer.

Disconnects of pipelining clients. uvicorn notifies only the request that it read last. Without the change, the request
that is being answered would run to its end and then write to a closed connection, which raises.

Malformed requests. uvicorn answers them in plain text; all errors of this server are JSON.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

RequestHeaders = dict[bytes, bytes]

#: Bytes of a body from which a request goes uvicorn's way: decoding so much JSON takes about a millisecond.
LONG_BODY = 128 << 10
_FIRST_REQUEST_S = 0.5  # how long a connection without a request stays open when the server stops
_LINGER_S = 5.0  # how long a client may go on sending a body that came too late
_RARE = frozenset({b"transfer-encoding", b"expect", b"content-encoding", b"upgrade"})  # headers of uvicorn's way
_CLOSE = b"connection: close\r\n"
_MALFORMED = json.dumps({"error": "the request is not valid HTTP/1.1"}).encode()
_MALFORMED_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
) % (len(_MALFORMED), _MALFORMED)


class _Unheard:
    """In place of the event by which uvicorn wakes who waits for a request's messages: nobody does."""

    def set(self) -> None: ...


class Exchange(ABC):
    """One request and its answer, on the short way. To uvicorn's own code it looks like a cycle."""

    __slots__ = ("connection", "disconnected", "keep_alive", "response_complete", "whole")

    message_event: ClassVar[_Unheard] = _Unheard()

    def __init__(self, connection: HttpProtocol) -> None:
        self.connection = connection
        self.keep_alive = True
        self.disconnected = False
        self.response_complete = False
        self.whole = False  # the body has come

    @abstractmethod
    def received(self, body: bytes) -> bool:
        """The body is there. False: the request is to go uvicorn's way after all, and nothing of it was done."""

    @abstractmethod
    def late(self) -> None:
        """The body did not come in time. Answers with an error."""

    @abstractmethod
    def left(self) -> None:
        """The client has gone before it had its answer."""

    @abstractmethod
    def closes(self) -> bool:
        """Whether the connection closes with this answer; asked when it is written."""

    def answer(self, status: int, head: bytes, body: bytes) -> None:
        """Answer: `head` is header lines, content-length among them. Held while the client reads too slowly."""
        if not (self.disconnected or self.response_complete):
            self.connection.send_answer(self, status, head, body)


class Handler(Protocol):
    """Who has exchanges for requests."""

    body_timeout_s: float

    def take(self, connection: HttpProtocol, url: bytes, headers: RequestHeaders, length: int) -> Exchange | None:
        """The exchange for a POST whose head has come, `length` its Content-Length; None: it goes uvicorn's way."""
        ...


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client."""

    # uvicorn's methods are called by the name of their class: that costs half as much as `super()`.

    def __init__(self, *args: Any, handler: Handler | None = None, **named: Any) -> None:
        HttpToolsProtocol.__init__(self, *args, **named)
        self._handler = handler
        #: The request that is being answered. uvicorn's `cycle` is the one that was read last.
        self._answering: RequestResponseCycle | Exchange | None = None
        self._collecting: Exchange | None = None  # its body is coming
        self._parts: list[bytes] = []
        self._body_timer: asyncio.TimerHandle | None = None
        self._held: tuple[Exchange, int, bytes, bytes] | None = None  # an answer, until the client reads on
        self._lingers = False  # the last answer has been given, and what still comes is dropped
        self._idle_since = 0.0
        self._default_lines: tuple[object, bytes] = (None, b"")

    # reading

    def data_received(self, data: bytes) -> None:
        HttpToolsProtocol.data_received(self, data)
        if self._collecting is not None and self._body_timer is None and self._handler is not None:
            self._body_timer = self.loop.call_later(self._handler.body_timeout_s, self._body_late)

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        exchange = self._take()
        if exchange is None:
            self._uvicorns_way()
            return
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # see Exchange
        if not exchange.response_complete:
            self._collecting = exchange
            self._parts = []

    def _take(self) -> Exchange | None:
        """The exchange for the request whose head has just come, if it is plain and the handler has one."""
        answering, parser, handler = self._answering, self.parser, self._handler
        if (
            handler is None or (answering is not None and not answering.response_complete)
            or parser.get_method() != b"POST" or self.flow.write_paused or self.access_log
        ):  # fmt: skip
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length")
        if length is None or not _RARE.isdisjoint(headers) or not parser.should_keep_alive():
            return None
        if b"connection" in headers and parser.get_http_version() != "1.1":
            return None
        size = int(length)
        return None if size > LONG_BODY else handler.take(self, self.url, headers, size)

    def _uvicorns_way(self) -> None:
        if self._lingers:
            return
        url, headers = self.url, self.headers
        HttpToolsProtocol.on_message_begin(self)
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        before = self.cycle
        HttpToolsProtocol.on_headers_complete(self)
        if self.cycle is not before:
            self.cycle.transport = _OneWrite(self.cycle)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._collecting is not None:
            self._parts.append(body)
        elif not self._lingers:
            HttpToolsProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        exchange = self._collecting
        if self._lingers:
            self.transport.close()
            return
        if exchange is None:
            HttpToolsProtocol.on_message_complete(self)
            return
        self._end_collecting()
        parts, self._parts = self._parts, []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        exchange.whole = True
        if not exchange.received(body):
            exchange.response_complete = True  # for uvicorn, which would queue the request behind it
            self._uvicorns_way()
            HttpToolsProtocol.on_body(self, body)
            HttpToolsProtocol.on_message_complete(self)

    def _end_collecting(self) -> None:
        self._collecting = None
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _body_late(self) -> None:
        exchange = self._collecting
        if exchange is not None:
            self._end_collecting()
            exchange.late()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        HttpToolsProtocol._start_asgi_task(self, cycle, app)

    # answering

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        """Write a whole answer; see Exchange.answer."""
        if self.flow.write_paused:
            self._held = (exchange, status, head, body)
            return
        defaults, lines = self._default_lines
        if defaults is not self.server_state.default_headers:  # uvicorn makes a new list every second, for the date
            defaults = self.server_state.default_headers
            lines = b"".join([b"%s: %s\r\n" % header for header in self.server_state.default_headers])
            self._default_lines = defaults, lines
        if closing := not exchange.keep_alive or exchange.closes():
            head += _CLOSE
        self.transport.write(b"%s%s%s\r\n%s" % (STATUS_LINE[status], lines, head, body))
        exchange.response_complete = True
        if not exchange.whole:
            self._end_collecting()  # the rest of the body is dropped
        if closing and not exchange.whole:
            # To close while the client still sends would reset the connection, and the client would lose the answer.
            self._lingers = True
            self._handler = None
            self.loop.call_later(_LINGER_S, self.transport.close)
            return
        if closing:
            self.transport.close()
        self.on_response_complete()

    def resume_writing(self) -> None:
        HttpToolsProtocol.resume_writing(self)
        if self._held is not None:
            (exchange, status, head, body), self._held = self._held, None
            exchange.answer(status, head, body)

    def on_response_complete(self) -> None:
        """A request has its answer: begin the next one, or wait for it. In place of uvicorn's, for both ways."""
        if isinstance(self._answering, RequestResponseCycle):
            self._answering.transport.flush()  # type: ignore[attr-defined]  # see _OneWrite
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
            return
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:
            self._wait_idle(self.timeout_keep_alive)

    # idle connections: one timer goes on over many requests, instead of being made anew with each answer

    def _wait_idle(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """uvicorn calls this with each read. The timer goes on: it looks whether the connection is idle."""

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if not self.cycle.response_complete or self.transport.is_closing():
            return  # the answer sets the timer again
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._wait_idle(left)
        else:
            self.transport.close()

    # the end

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_collecting()
        self._held = None
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            if isinstance(answering, Exchange):
                answering.left()
            else:
                answering.message_event.set()  # wakes `receive`, which then tells of the disconnect
        self.pipeline.clear()
        HttpToolsProtocol.connection_lost(self, exc)

    def shutdown(self) -> None:
        cycle: Any = self.cycle  # None before the first request, although uvicorn's type says otherwise
        if cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_REQUEST_S, HttpToolsProtocol.shutdown, self)
        else:
            HttpToolsProtocol.shutdown(self)

    def send_400_response(self, msg: str) -> None:
        self.transport.write(_MALFORMED_ANSWER)
        self.transport.close()


class _OneWrite:
    """What a cycle of uvicorn writes to: keeps the head of an answer until its body comes, or its end."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._head: bytes | None = b""  # None: it has been written

    def write(self, data: bytes) -> None:
        if self._head is None or not self._cycle.response_started:  # 100 Continue comes before an answer
            self._transport.write(data)
        elif self._head:
            self._transport.write(self._head + data)
            self._head = None
        else:
            self._head = data

    def flush(self) -> None:
        """The answer is over: that to a HEAD has no body."""
        if self._head:
            self._transport.write(self._head)
            self._head = None

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._transport.close()
