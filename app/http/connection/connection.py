"""HTTP connections with a fast path, which needs no ASGI scope, task or future.

`take` makes an `Exchange` of a plain POST. The connection begins it, collects the body and passes it to the exchange,
which answers at any time, in one write. Rare requests are left to uvicorn, which makes ASGI requests of them. A head
that equals the last one taken is not parsed again: for a small request the parser makes nine callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from app.http.connection.uvicorn_fixes import PatchedProtocol

RequestHeaders = dict[bytes, bytes]  # as in http/body.py; this folder imports nothing of ours but itself

LONG_BODY = 4 << 20  # bytes: requests with more are left to ASGI, which stops reading where it cannot keep up
_LARGE_ANSWER = 128 << 10  # bytes of a body from which a copy counts
#: Headers of requests that are left to ASGI.
_RARE = frozenset({b"transfer-encoding", b"expect", b"content-encoding", b"upgrade"})
_LONGEST_HEAD = 4096  # bytes of a head up to which a connection remembers it
_METHOD, _END_OF_HEAD = b"POST ", b"\r\n\r\n"
_CLOSE = b"connection: close\r\n"


class Carrier(Protocol):
    """What an exchange needs to send its answer: HttpProtocol or AsgiCarrier."""

    #: The state of the application's lifespan. While `closing` of its `health` is set, answers close connections.
    app_state: dict[str, Any]
    #: Address and port of the other side, where it has them.
    client: Any

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        """Write a whole answer. `head`: header lines with content-length; `date` and `connection` are added.

        It is dropped if the client has disconnected.
        """


class Exchange:
    """One request and its answer. It has the attributes that uvicorn's code uses of a RequestResponseCycle."""

    #: uvicorn sets it to wake its `receive`. Nothing waits on this one.
    message_event: ClassVar[asyncio.Event] = asyncio.Event()

    connection: Carrier
    keep_alive = True
    disconnected = response_complete = body_complete = False
    drops_body = False  # the answer is a refusal that waits for its turn
    closes = False  # the connection closes after the answer

    def begin(self) -> None:
        """The head has arrived, and the body if `body_complete`. Called once, when the connection is prepared."""

    def hold(self, size: int) -> None:
        """So many more bytes of the body have arrived, later than the head. May answer that they are too many."""

    def received(self, body: bytes) -> None:
        """The whole body has arrived, later than the head."""

    def on_body_timeout(self) -> None:
        """The body did not arrive in time: answer 408."""

    def on_disconnect(self) -> None:
        """The client disconnected before its answer."""


#: Called with the connection, target, headers, Content-Length and body of a POST; None: the body has not arrived yet.
#: Returns its exchange, or None to leave the request to ASGI. It must not change the headers: later requests with the
#: same head share them.
Take = Callable[["HttpProtocol", bytes, RequestHeaders, int, bytes | None], Exchange | None]


class KnownHead(NamedTuple):
    """The head of a request that was taken: its bytes, and the result of parsing them."""

    text: bytes
    url: bytes
    headers: RequestHeaders
    length: int


class HttpProtocol(PatchedProtocol):
    """One connection."""

    def __init__(self, *args: Any, take: Take, body_timeout_s: float, **named: Any) -> None:
        PatchedProtocol.__init__(self, *args, **named)
        self._take = take
        self._body_timeout_s = body_timeout_s
        self._chunk: bytes | None = None  # the bytes being parsed, until the first request in them is complete
        self._head: KnownHead | None = None  # the last head that was taken
        self._last = False  # the request being answered has `Connection: close`
        self._missing = 0  # bytes still to come of a body whose head was not parsed
        self._collecting: Exchange | None = None  # the exchange whose body is being read
        self._parts: list[bytes] = []
        self._body_timer: asyncio.TimerHandle | None = None
        self._default_lines: tuple[object, bytes] = (None, b"")

    # reading

    def data_received(self, data: bytes) -> None:
        while data and not self._discards_input:
            head = self._head
            if self._missing:
                data = self._collect(data)
            elif (
                head is not None
                and not self._parsing
                and (self._answering is None or self._answering.response_complete)
                and not self.flow.write_paused  # see `_free`
                and data.startswith(head.text)
            ):
                data = self._take_again(head, data)
            else:
                self._parse(data)
                break
        if self._collecting is not None and self._body_timer is None:
            self._body_timer = self.loop.call_later(self._body_timeout_s, self._body_late)

    def _parse(self, data: bytes) -> bool:
        self._chunk = None if self._parsing else data
        fine = PatchedProtocol._parse(self, data)
        if not fine:
            self._head = None
        self._chunk = None
        return fine

    def _free(self) -> bool:
        """Whether nothing is being answered on this connection, and the last answer has been read."""
        answering = self._answering
        return (answering is None or answering.response_complete) and not self.flow.write_paused

    def _begin(self) -> None:
        exchange = self._taken()
        if exchange is None:
            PatchedProtocol._begin(self)
            return
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # see Exchange
        exchange.begin()
        if not exchange.response_complete:
            self._collecting = exchange

    def _taken(self) -> Exchange | None:
        """The exchange of the request whose head has just been parsed; None leaves the request to ASGI."""
        parser = self.parser
        if parser.get_method() != b"POST" or not self._free():
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
        exchange = self._take(self, self.url, headers, size, None)
        chunk = self._chunk
        if exchange is not None and not last and chunk is not None and chunk.startswith(_METHOD):
            # A head ends at the first empty line, so equal bytes are an equal head.
            text = chunk[: chunk.find(_END_OF_HEAD) + len(_END_OF_HEAD)]
            self._head = KnownHead(text, self.url, headers, size) if len(text) <= _LONGEST_HEAD else None
        return exchange

    def on_body(self, body: bytes) -> None:
        if self._collecting is not None:
            self._bytes_outside_bodies = 0
            self._keep(self._collecting, body)
        else:
            PatchedProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        exchange = self._collecting
        if exchange is None:
            PatchedProtocol.on_message_complete(self)
            return
        self._parsing = False
        self._chunk = None
        self._deliver(exchange)

    # repeated heads: the parser is between two requests and does not see this one

    def _take_again(self, head: KnownHead, data: bytes) -> bytes:
        """Take the request at the start of `data`, whose head is known. Returns the bytes after it."""
        rest = data[len(head.text) :]
        whole = len(rest) == head.length  # nearly always
        exchange = self._take(self, head.url, head.headers, head.length, rest if whole else None)
        if exchange is None:
            self._parse(data)
            return b""
        self.cycle = self._answering = exchange  # type: ignore[assignment]  # see Exchange
        exchange.begin()
        if whole:
            return b""
        if not exchange.response_complete:
            self._collecting = exchange
        self._missing = head.length
        return self._collect(rest)

    def _collect(self, data: bytes) -> bytes:
        """Collect the body of a request whose head was not parsed. Returns the bytes after it."""
        part = data[: self._missing]
        self._missing -= len(part)
        if self._collecting is not None:
            self._keep(self._collecting, part)
        if self._missing:
            return b""
        if self._collecting is not None:
            self._deliver(self._collecting)
        return data[len(part) :]

    def _keep(self, exchange: Exchange, part: bytes) -> None:
        """Keep a part of a body, unless its request is refused."""
        if not exchange.drops_body:
            exchange.hold(len(part))
        if self._collecting is exchange and not exchange.drops_body:
            self._parts.append(part)

    def _deliver(self, exchange: Exchange) -> None:
        """Pass the collected body, which is complete, to its exchange."""
        parts = self._parts
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._end_collecting()
        exchange.body_complete = True
        exchange.received(body)

    def _end_collecting(self) -> None:
        self._collecting = None
        self._parts = []
        if self._body_timer is not None:
            self._body_timer.cancel()
            self._body_timer = None

    def _body_late(self) -> None:
        self._body_timer = None
        exchange = self._collecting
        if exchange is not None and not exchange.drops_body:  # a refusal is already due
            self._parts = []
            exchange.on_body_timeout()  # its answer ends the collecting

    # answering

    def send_answer(self, exchange: Exchange, status: int, head: bytes, body: bytes) -> None:
        """See `Carrier`. The client has read every answer before this one: see `_free`."""
        if exchange.disconnected or exchange.response_complete:
            return
        defaults = self.server_state.default_headers
        if defaults is not self._default_lines[0]:  # uvicorn makes a new list every second, for the date
            self._default_lines = defaults, b"".join([b"%s: %s\r\n" % header for header in defaults])
        if closing := self._last or not exchange.keep_alive or exchange.closes or self.app_state["health"].closing:
            head += _CLOSE
        if len(body) < _LARGE_ANSWER:
            self.transport.write(b"%s%s%s\r\n%s" % (STATUS_LINE[status], self._default_lines[1], head, body))
        else:  # one write, too, without a copy
            self.transport.writelines((b"%s%s%s\r\n" % (STATUS_LINE[status], self._default_lines[1], head), body))
        exchange.response_complete = True
        if not exchange.body_complete:
            self._end_collecting()  # the rest of the body is dropped
        if closing:
            self._end(sends=not exchange.body_complete)
        elif self.pipeline or self.flow.read_paused:
            self.on_response_complete()
        else:
            self.idle_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_collecting()
        self._head = None
        answering = self._answering
        if isinstance(answering, Exchange) and not answering.response_complete:
            answering.disconnected = True
            answering.on_disconnect()
        PatchedProtocol.connection_lost(self, exc)
