"""uvicorn's HTTP protocol, with a short way for requests that need no ASGI task.

The short way. A plain POST for which the handler has an `Exchange` is collected here and given to it; the exchange
answers when it likes, in one write. It costs neither a task nor a scope, nor a future. What is rare goes uvicorn's way
unchanged: chunked bodies, Expect, Content-Encoding, upgrades, requests behind another one on the same connection,
HTTP/1.0, `Connection: close`, large bodies, slow readers, and everything while there is an access log.

The same head again. Most clients send the same head with each request on a connection. One that has been taken before
is recognised by its bytes, and not parsed again: parsing calls back nine times for a small request.

What differs from uvicorn on its own way too (tests/test_protocol.py checks the internals that this relies on): Answers
leave in one write (`OneWrite`). A client that pipelines is not read far ahead of its answers (`PipelineFlow`). An offer
to upgrade is declined, and the request answered (`upgrades.py`). When the server stops, uvicorn closes connections on
which it has seen no request; the first request of a connection that was just opened may be on its way, so such a
connection stays open for a moment longer. When a client leaves, uvicorn notifies only the request that it read last;
here the one that is being answered hears of it, and does not write to a closed connection, which raises. uvicorn
answers malformed requests in plain text; all errors of this server are JSON.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.protocol.exchange import Exchange, Handler, RequestHeaders
from app.protocol.flow import PipelineFlow
from app.protocol.idle import IdleTimer
from app.protocol.one_write import OneWrite
from app.protocol.upgrades import declined

#: Bytes of a body from which a request goes uvicorn's way: decoding so much JSON takes about a millisecond.
LONG_BODY = 128 << 10
_FIRST_REQUEST_S = 0.5  # how long a connection without a request stays open when the server stops
_LINGER_S = 5.0  # how long a client may go on sending when it has its last answer
_RARE = frozenset({b"transfer-encoding", b"expect", b"content-encoding", b"upgrade"})  # headers of uvicorn's way
_LONGEST_HEAD = 4096  # bytes of a head that a connection remembers
_METHOD, _END_OF_HEAD = b"POST ", b"\r\n\r\n"
_CLOSE = b"connection: close\r\n"
_MALFORMED = json.dumps({"error": "the request is not valid HTTP/1.1"}).encode()
_MALFORMED_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%s"
) % (len(_MALFORMED), _MALFORMED)


class Head(NamedTuple):
    """The head of a request that was taken: its bytes, and what they mean."""

    text: bytes
    url: bytes
    headers: RequestHeaders
    length: int


class HttpProtocol(HttpToolsProtocol):
    """One connection of a client."""

    # uvicorn's methods are called by the name of their class: that costs half as much as `super()`.

    def __init__(self, *args: Any, handler: Handler | None = None, **named: Any) -> None:
        HttpToolsProtocol.__init__(self, *args, **named)
        self._handler = handler
        #: The request that is being answered. uvicorn's `cycle` is the one that was read last.
        self._answering: RequestResponseCycle | Exchange | None = None
        self._parsing = False  # the parser is within a request
        self._chunk: bytes | None = None  # what is being parsed, if the first request in it begins with it
        self._known: Head | None = None  # the last head that was taken
        self._missing = 0  # bytes of the body of a request whose head was known
        self._collecting: Exchange | None = None  # its body is coming
        self._parts: list[bytes] = []
        self._body_timer: asyncio.TimerHandle | None = None
        self._held: tuple[Exchange, int, bytes, bytes] | None = None  # an answer, until the client reads on
        self._lingers = False  # the last answer has been given, and what still comes is dropped
        self._declines = False  # the head that has just come offers an upgrade
        self._default_lines: tuple[object, bytes] = (None, b"")
        self._idle = IdleTimer(self.loop, self.timeout_keep_alive, self._busy, self._close)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        HttpToolsProtocol.connection_made(self, transport)
        self.flow = PipelineFlow(transport, self.pipeline)

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

    def _parse(self, data: bytes) -> None:
        self._chunk = None if self._parsing else data
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._known = None
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("")
        except httptools.HttpParserUpgrade as upgrade:
            self._known = None
            if self._declines:
                self._decline(data[upgrade.args[0] :])
            elif self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._unsupported_upgrade_warning()
        self._chunk = None

    def _decline(self, rest: bytes) -> None:
        """Parse the request whose head offers an upgrade again, without the offer. `rest`: what is behind the head."""
        head = declined(self.parser.get_method(), self.url, self.headers)
        self._declines = self._parsing = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's is
        self._parse(head + rest)

    def _free(self) -> bool:
        """Whether nothing is being answered on this connection, and the last answer has been read."""
        answering = self._answering
        return (answering is None or answering.response_complete) and not self.flow.write_paused

    def on_message_begin(self) -> None:
        self._parsing = True
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT" and not self._should_upgrade():
            self._declines = True
            return
        exchange = self._take()
        if exchange is None:
            self._uvicorns_way()
            return
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # see Exchange
        if not exchange.response_complete:
            self._collecting = exchange

    def _take(self) -> Exchange | None:
        """The exchange for the request whose head has just come, if it is plain and the handler has one."""
        parser, handler = self.parser, self._handler
        if handler is None or parser.get_method() != b"POST" or self.access_log or not self._free():
            return None
        headers = dict(self.headers)
        length = headers.get(b"content-length")
        if length is None or not _RARE.isdisjoint(headers) or not parser.should_keep_alive():
            return None
        if b"connection" in headers and parser.get_http_version() != "1.1":
            return None
        size = int(length)
        if size > LONG_BODY:
            return None
        exchange = handler.take(self, self.url, headers, size)
        chunk = self._chunk
        if exchange is not None and chunk is not None and chunk.startswith(_METHOD):
            # A head ends with the first empty line, so these bytes will always mean the same.
            text = chunk[: chunk.find(_END_OF_HEAD) + len(_END_OF_HEAD)]
            self._known = Head(text, self.url, headers, size) if len(text) <= _LONGEST_HEAD else None
        return exchange

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
            self.cycle.transport = OneWrite(self.cycle, self._end)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        if self._collecting is not None:
            self._parts.append(body)
        elif not self._lingers:  # since an earlier request in the same read
            HttpToolsProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        if self._declines:
            return
        self._parsing = False
        self._chunk = None
        exchange = self._collecting
        if self._lingers:
            return
        if exchange is None:
            HttpToolsProtocol.on_message_complete(self)
        else:
            body = self._collected()
            exchange.whole = True
            if not exchange.received(body):
                exchange.response_complete = True  # for uvicorn, which would queue the request behind it
                self._uvicorns_way()
                HttpToolsProtocol.on_body(self, body)
                HttpToolsProtocol.on_message_complete(self)

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
        if exchange is not None:
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
        if exchange is not None:
            self._end_collecting()
            exchange.late()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        HttpToolsProtocol._start_asgi_task(self, cycle, app)

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
        if closing := not exchange.keep_alive or exchange.closes():
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
            self._idle.answered()

    def resume_writing(self) -> None:
        HttpToolsProtocol.resume_writing(self)
        if self._held is not None:
            (exchange, status, head, body), self._held = self._held, None
            self.send_answer(exchange, status, head, body)

    def on_response_complete(self) -> None:
        """A request has its answer: begin the next one, or wait for it. In place of uvicorn's, for both ways."""
        if isinstance(self._answering, RequestResponseCycle):
            self._answering.transport.flush()  # type: ignore[attr-defined]  # see OneWrite
        self.server_state.total_requests += 1
        if self.transport.is_closing() or self._lingers:
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self._idle.answered()
        self.flow.resume_reading()

    def _busy(self) -> bool:
        return not self.cycle.response_complete

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()

    # the end

    def _end(self, *, sends: bool = False) -> None:
        """The last answer has been written. `sends`: the client is known to be sending still.

        To close a connection of which something is unread resets it, and the client may lose answers. So it hears that
        nothing more comes, and what it still sends is dropped for a while, or until it closes.
        """
        if not (sends or self.flow.read_paused) or self.transport.is_closing():
            self.transport.close()
            return
        self._lingers = True
        self._handler = None
        self.pipeline.clear()
        self.flow.resume_reading()
        self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_collecting()
        self._held = self._known = None
        self._idle.cancel()
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
