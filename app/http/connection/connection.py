"""HTTP connections with a fast path for requests that need no ASGI task.

The fast path. A plain POST for which the handler has an `Exchange` is collected here and given to it; the exchange
answers when it likes, in one write. It costs neither a task nor a scope, nor a future. What is rare goes uvicorn's way
unchanged: chunked bodies, Expect, Content-Encoding, upgrades, requests behind another one on the same connection,
HTTP/1.0, large bodies and slow readers.

The same head again. Most clients send the same head with each request on a connection. One that has been taken before
is recognised by its bytes, and not parsed again: parsing calls back nine times for a small request.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from app.http.connection.exchange import Exchange, Handler, RequestHeaders
from app.http.connection.uvicorn_fixes import MendedProtocol

#: Bytes of a body from which a request goes uvicorn's way: decoding so much JSON takes about a millisecond.
LONG_BODY = 128 << 10
_RARE = frozenset({b"transfer-encoding", b"expect", b"content-encoding", b"upgrade"})  # headers of uvicorn's way
_LONGEST_HEAD = 4096  # bytes of a head that a connection remembers
_METHOD, _END_OF_HEAD = b"POST ", b"\r\n\r\n"
_CLOSE = b"connection: close\r\n"


class Head(NamedTuple):
    """The head of a request that was taken: its bytes, and what they mean."""

    text: bytes
    url: bytes
    headers: RequestHeaders
    length: int


class HttpProtocol(MendedProtocol):
    """One connection of a client. `handler` has the exchanges; without one all requests go uvicorn's way."""

    def __init__(self, *args: Any, handler: Handler | None = None, **named: Any) -> None:
        MendedProtocol.__init__(self, *args, **named)
        self._handler = handler
        self._chunk: bytes | None = None  # what is being parsed, if the first request in it begins with it
        self._known: Head | None = None  # the last head that was taken
        self._last = False  # the request that is being answered is the last one: `Connection: close`
        self._missing = 0  # bytes of the body of a request whose head was known
        self._collecting: Exchange | None = None  # its body is coming
        self._parts: list[bytes] = []
        self._body_timer: asyncio.TimerHandle | None = None
        self._held: tuple[Exchange, int, bytes, bytes] | None = None  # an answer, until the client reads on
        self._default_lines: tuple[object, bytes] = (None, b"")

    # reading

    def data_received(self, data: bytes) -> None:
        while data and not self._lingers:
            known = self._known
            if self._missing:
                data = self._collect(data)
            elif known is not None and not self._parsing and data.startswith(known.text) and self._free():
                data = self._take_known(known, data)
            else:
                self._parse(data)
                break
        if self._collecting is not None and self._body_timer is None and self._handler is not None:
            self._body_timer = self.loop.call_later(self._handler.body_timeout_s, self._body_late)

    def _parse(self, data: bytes) -> bool:
        self._chunk = None if self._parsing else data
        fine = MendedProtocol._parse(self, data)
        if not fine:
            self._known = None
        self._chunk = None
        return fine

    def _free(self) -> bool:
        """Whether nothing is being answered on this connection, and the last answer has been read."""
        answering = self._answering
        return (answering is None or answering.response_complete) and not self.flow.write_paused

    def _begin(self) -> None:
        exchange = self._take()
        if exchange is None:
            MendedProtocol._begin(self)
            return
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # see Exchange
        if not exchange.response_complete:
            self._collecting = exchange

    def _take(self) -> Exchange | None:
        """The exchange for the request whose head has just come, if it is plain and the handler has one."""
        parser, handler = self.parser, self._handler
        if handler is None or parser.get_method() != b"POST" or not self._free():
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length")
        if length is None or not _RARE.isdisjoint(headers):
            return None
        last = not parser.should_keep_alive()
        if (last or b"connection" in headers) and parser.get_http_version() != "1.1":
            return None
        size = int(length)
        if size > LONG_BODY:
            return None
        self._last = last
        exchange = handler.take(self, self.url, headers, size)
        chunk = self._chunk
        if exchange is not None and not last and chunk is not None and chunk.startswith(_METHOD):
            # A head ends with the first empty line, so these bytes will always mean the same.
            text = chunk[: chunk.find(_END_OF_HEAD) + len(_END_OF_HEAD)]
            self._known = Head(text, self.url, headers, size) if len(text) <= _LONGEST_HEAD else None
        return exchange

    def on_body(self, body: bytes) -> None:
        if self._collecting is not None:
            self._apart = 0
            if not self._collecting.refused:
                self._parts.append(body)
        else:
            MendedProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        exchange = self._collecting
        if exchange is None:
            MendedProtocol.on_message_complete(self)
            return
        self._parsing = False
        self._chunk = None
        body = self._collected()
        exchange.whole = True
        if not exchange.received(body):
            exchange.response_complete = True  # for uvicorn, which would queue the request behind it
            MendedProtocol._begin(self)
            MendedProtocol.on_body(self, body)
            MendedProtocol.on_message_complete(self)

    # a head that is known: the parser, which is between two requests, hears nothing of this one

    def _take_known(self, known: Head, data: bytes) -> bytes:
        """Take the request that begins `data`; returns what lies behind it."""
        handler = self._handler
        exchange = None if handler is None else handler.take(self, known.url, known.headers, known.length)
        if exchange is None:
            self._parse(data)
            return b""
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # see Exchange
        rest = data[len(known.text) :]
        if len(rest) == known.length and not exchange.response_complete:  # nearly always
            exchange.whole = True
            if not exchange.received(rest):
                self._give_back(exchange, known, rest)
            return b""
        if not exchange.response_complete:
            self._collecting = exchange
        self._missing = known.length
        return self._collect(rest)

    def _collect(self, data: bytes) -> bytes:
        """More of the body of a request whose head was known; returns what lies behind it."""
        part = data[: self._missing]
        self._missing -= len(part)
        exchange, known = self._collecting, self._known
        if exchange is not None and not exchange.refused:
            self._parts.append(part)
        if self._missing:
            return b""
        if exchange is not None and known is not None:
            body = self._collected()
            exchange.whole = True
            if not exchange.received(body):
                self._give_back(exchange, known, body)
        return data[len(part) :]

    def _give_back(self, exchange: Exchange, known: Head, body: bytes) -> None:
        """A request whose head was known goes uvicorn's way after all."""
        exchange.response_complete = True  # for uvicorn, which would queue the request behind it
        handler, self._handler = self._handler, None
        self._parse(known.text + body)
        self._handler = handler

    def _collected(self) -> bytes:
        """The body, which is whole."""
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._end_collecting()
        return body

    def _end_collecting(self) -> None:
        self._collecting = None
        self._parts = []
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _body_late(self) -> None:
        exchange = self._collecting
        if exchange is not None and not exchange.refused:  # a refusal is already on its way
            self._end_collecting()
            exchange.late()

    # answering

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        """See exchange.Connection."""
        if self.flow.write_paused:
            self._held = (exchange, status, head, body)
            return
        if exchange.disconnected or exchange.response_complete:
            return
        defaults = self.server_state.default_headers
        if defaults is not self._default_lines[0]:  # uvicorn makes a new list every second, for the date
            self._default_lines = defaults, b"".join([b"%s: %s\r\n" % header for header in defaults])
        if closing := self._last or not exchange.keep_alive or exchange.closes():
            head += _CLOSE
        self.transport.write(b"%s%s%s\r\n%s" % (STATUS_LINE[status], self._default_lines[1], head, body))
        exchange.response_complete = True
        if not exchange.whole:
            self._end_collecting()  # the rest of the body is dropped
        if closing:
            self._end(sends=not exchange.whole)
        elif self.pipeline or self.flow.read_paused:
            self.on_response_complete()
        else:
            self._waiting.begins(self)

    def resume_writing(self) -> None:
        HttpToolsProtocol.resume_writing(self)
        if self._held is not None:
            (exchange, status, head, body), self._held = self._held, None
            self.send_answer(exchange, status, head, body)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_collecting()
        self._held = self._known = None
        answering = self._answering
        if isinstance(answering, Exchange) and not answering.response_complete:
            answering.disconnected = True
            answering.left()
        MendedProtocol.connection_lost(self, exc)
