"""uvicorn's HTTP protocol with corrections. It relies on internals of one release.

What is corrected, why, and the test that fails without it: docs/theory/connections.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.http.connection.idle_connections import IdleConnections
from app.http.connection.uvicorn_parts import OneWrite, PipelineFlow, unacknowledged, without_upgrade

#: In the scope of a request whose chunks or trailers were malformed: the status that the connection has answered.
BAD_FRAMES = "starling.bad_frames"

_FIRST_REQUEST_S = 0.5  # how long a connection without a request stays open when the server stops
_CLOSE_NOTIFY_S = 1.0  # a TLS client that reads has answered by then
_LINGER_S = 5.0  # how long a client may continue to send after its last answer
_NO_VERSION = ("0.0", "0.9")  # what the parser says of a request line without one
_SPACE = ord(" ")
_LONGEST_HEAD = 64 << 10  # bytes of a head, and of anything else outside bodies, such as trailers


def _refusal(status: int, why: str) -> bytes:
    """An answer after which the connection closes."""
    body = json.dumps({"error": why}).encode()
    head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return STATUS_LINE[status] + head + body


_HEAD_TOO_LONG = _refusal(431, f"the request's head: expected at most {_LONGEST_HEAD} bytes")
_BAD_VERSION = _refusal(400, "the request's first line: expected a path and HTTP/1.1 or HTTP/1.0")
_NEWER = _refusal(505, "expected HTTP/1.1 or HTTP/1.0")
_BAD_HOST = _refusal(400, "Host: expected one, as HTTP/1.1 has it")
_HEAD_LATE = _refusal(408, "the request's head did not arrive in time")
_BAD_CODING = _refusal(400, "Transfer-Encoding: expected chunked and nothing else")


class PatchedProtocol(HttpToolsProtocol):
    """One connection. `idle`: of all connections of the server. `hold`: called with how many more bytes of answers its
    client has still to read."""

    #: Of all connections: malformed requests; how many of them the log has reported, and when it last did.
    malformed, _reported, _reported_at = 0, 0, -1.0

    # uvicorn's methods are called through their class: that costs half as much as `super()`.

    def __init__(self, *args: Any, idle: IdleConnections, hold: Callable[[int], object], **named: Any) -> None:
        HttpToolsProtocol.__init__(self, *args, **named)
        #: The request that is being answered: a cycle or an Exchange. uvicorn's `cycle` is the one that was read last.
        self._answering: Any = None
        self._parsing = False  # the parser is within a request
        self._in_head = False  # and that within its head
        self._upgrade_offered = False  # the head that has just come offers an upgrade
        self._bytes_outside_bodies = 0  # bytes read since the last byte of a body, or since the request began
        self._malformed_answer = b""  # the answer to a request that cannot be parsed; b"": the parser says why
        self._resumed = 0  # how often the client has read on, after writing had to pause
        self._hold_bytes = hold
        self._unread_bytes = 0  # of answers that it has still to read: those of large ones, or of who reads slowly
        self._discards_input = False  # the last answer has been given, or is due; input is dropped
        self._idle = idle
        self.idle_since = 0.0  # see idle_connections.IdleConnection
        self._tls_timer: asyncio.TimerHandle | None = None

    def _log_malformed(self) -> None:
        """At most one line a second for all connections."""
        protocol, now = PatchedProtocol, self.loop.time()
        protocol.malformed += 1
        if not 0 <= now - protocol._reported_at < 1:
            count, sender = protocol.malformed - protocol._reported, self.client[0] if self.client else "who has left"
            self.logger.warning("malformed HTTP requests received: %d, the last from %s", count, sender)
            protocol._reported, protocol._reported_at = protocol.malformed, now

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        HttpToolsProtocol.connection_made(self, transport)
        self.flow = PipelineFlow(transport, self.pipeline)
        self._idle.opened(self, len(self.connections))

    # reading

    def _parse(self, data: bytes) -> bool:
        """Parse `data`. False if the parser cannot continue: after a malformed request or an upgrade."""
        self._bytes_outside_bodies += len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._discards_input:  # as it does behind the last answer, to an earlier request in this read
                said = self._malformed_answer or _refusal(400, f"the request is not valid HTTP/1.1: {error}")
                self._refuse_request(said)
        except httptools.HttpParserUpgrade as upgrade:
            if self._upgrade_offered:  # else it is CONNECT, which is answered as any other
                self._decline(data[upgrade.args[0] :])
        else:
            if self._discards_input:
                return False
            if self._in_head and data.endswith(b"\n") and self.url and self.parser.get_http_version() in _NO_VERSION:
                self._refuse_request(_BAD_VERSION)  # HTTP/0.9 has no headers: nothing need follow this line
            elif self._bytes_outside_bodies <= _LONGEST_HEAD:
                return True
            else:
                self._refuse_request(_HEAD_TOO_LONG)
        return False

    def _refuse_request(self, answer: bytes) -> None:
        """The parser cannot continue: give this answer, unless answers to earlier requests are due.

        The connection closes after those; nothing more is parsed.
        """
        self._log_malformed()
        self._malformed_answer = answer
        answering, in_body = self._answering, self._parsing and not self._in_head
        if answering is None or answering.response_complete or (in_body and self.cycle is answering):
            self.send_400_response("")
            return
        if in_body:
            self.pipeline.popleft()  # where it waits for its turn
            self._parsing = False
        last = self.pipeline[0][0] if self.pipeline else answering
        last.keep_alive = False
        self._discards_input = True  # pausing would not do: whoever waits for the client to leave reads on

    def _decline(self, rest: bytes) -> None:
        """Parse the request again without its offer to upgrade. `rest`: the bytes after its head."""
        head = without_upgrade(self.parser.get_method(), self.url, self.parser.get_http_version(), self.headers)
        self._upgrade_offered = self._parsing = False
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's is
        self._parse(head + rest)

    def on_message_begin(self) -> None:
        self._parsing = self._in_head = True
        self._bytes_outside_bodies = 0
        self.url = b""
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it is a trailer
            if value and value[-1] <= _SPACE:  # the parser leaves it to others (RFC 9110, 5.5)
                value = value.rstrip(b" \t")
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._check_head()
        self._in_head = False
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            self._upgrade_offered = True
        elif not self._discards_input:  # since an earlier request in the same read
            self._begin()

    def _check_head(self) -> None:
        """Raise ValueError, which stops the parser, for a head that RFC 9112 says to refuse, or a too long one."""
        names = [name for name, _ in self.headers]
        hosts, version = names.count(b"host"), self.parser.get_http_version()
        if version not in ("1.1", "1.0"):
            self._malformed_answer = _BAD_VERSION if version in _NO_VERSION else _NEWER
        elif hosts > 1 or (not hosts and version == "1.1"):
            self._malformed_answer = _BAD_HOST
        elif b"transfer-encoding" in names and [
            value.lower() for name, value in self.headers if name == b"transfer-encoding"
        ] != [b"chunked"]:
            self._malformed_answer = _BAD_CODING
        elif self._head_bytes() > _LONGEST_HEAD:
            self._malformed_answer = _HEAD_TOO_LONG
        else:
            return
        raise ValueError

    def _head_bytes(self) -> int:
        """A lower bound of the bytes of the head that was just parsed."""
        return len(self.url) + sum(len(name) + len(value) + len(b":\r\n") for name, value in self.headers)

    def _begin(self) -> None:
        """A head is complete: uvicorn starts a task that answers the request, or queues it in the pipeline."""
        url, headers = self.url, self.headers
        HttpToolsProtocol.on_message_begin(self)
        self.url = url
        self.headers.extend(headers)
        self.expect_100_continue = self.parser.get_http_version() == "1.1" and any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        before = self.cycle
        HttpToolsProtocol.on_headers_complete(self)
        if self.cycle is not before:
            self.cycle.transport = OneWrite(self.cycle, self._end)  # type: ignore[assignment]

    def on_body(self, body: bytes) -> None:
        self._bytes_outside_bodies = 0
        if not self._discards_input:
            HttpToolsProtocol.on_body(self, body)

    def on_message_complete(self) -> None:
        if not self._upgrade_offered:
            self._parsing = False
            if not self._discards_input:
                HttpToolsProtocol.on_message_complete(self)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        HttpToolsProtocol._start_asgi_task(self, cycle, app)

    def on_response_complete(self) -> None:
        """An answer is complete: start the next pipelined request, or wait for one. Replaces uvicorn's method."""
        if isinstance(self._answering, RequestResponseCycle):
            self._answering.transport.flush()  # type: ignore[attr-defined]  # see OneWrite
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        else:
            self.idle_since = self.loop.time()
        self.flow.resume_reading()

    def pause_writing(self) -> None:
        HttpToolsProtocol.pause_writing(self)
        self._hold(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._resumed += 1
        self._hold(0)
        HttpToolsProtocol.resume_writing(self)

    def _hold(self, unread: int) -> None:
        self._hold_bytes(unread - self._unread_bytes)
        self._unread_bytes = unread

    def waits(self) -> bool:
        """See idle_connections.IdleConnection."""
        cycle: Any = self.cycle  # None before the first request, unlike its type
        return (cycle is None or cycle.response_complete) and not self._discards_input

    def waited_too_long(self) -> None:
        """See idle_connections.IdleConnection."""
        if self._in_head and not self.transport.is_closing():
            self.transport.write(_HEAD_LATE)
        self._close()

    def unread(self) -> tuple[int, ...] | None:
        """See idle_connections.IdleConnection."""
        if self.flow.write_paused or self.transport.is_closing():
            # The system takes more of the buffer only when much of what it holds has been read.
            return self.transport.get_write_buffer_size(), self._resumed, unacknowledged(self.transport)
        return None

    def cut(self) -> None:
        """See idle_connections.IdleConnection."""
        self.transport.abort()

    def _close(self) -> None:
        self.transport.close()
        self._close_tls()

    def _close_tls(self) -> None:
        """Call this after closing the transport."""
        if self.scheme == "https" and self._tls_timer is None and self.transport.is_closing():
            self._tls_timer = self.loop.call_later(_CLOSE_NOTIFY_S, self._abort_tls)

    def _abort_tls(self) -> None:
        """Abort a closing TLS connection whose client has not answered close_notify.

        asyncio waits up to 30 s for the answer. A client that keeps an idle connection in a pool does not read from it,
        so a server that shuts down would wait all that time. While written bytes have not reached the client, wait on.
        """
        if unacknowledged(self.transport):
            self._tls_timer = self.loop.call_later(_CLOSE_NOTIFY_S, self._abort_tls)
        else:
            self.transport.abort()

    # the end

    def _end(self, *, sends: bool = False) -> None:
        """Close after the last answer. `sends`: the client is known to be still sending.

        Closing a connection that has unread bytes resets it, and the client may lose answers. So at first only our side
        is closed, and what the client still sends is dropped for at most 5 seconds, or until it closes.
        """
        if not (sends or self._discards_input or self.flow.read_paused) or self.transport.is_closing():
            self._close()
            return
        self._discards_input = True
        self.pipeline.clear()
        self.flow.resume_reading()
        if self.scheme != "https":  # TLS cannot close one side alone; the answer has `Connection: close`
            self.transport.write_eof()
        self.loop.call_later(_LINGER_S, self._close)

    def connection_lost(self, exc: Exception | None) -> None:
        self._hold(0)
        self._idle.lost(self)
        if self._tls_timer is not None:
            self._tls_timer.cancel()
        self._disconnect_answering()
        self.pipeline.clear()
        HttpToolsProtocol.connection_lost(self, exc)

    def _disconnect_answering(self) -> None:
        """The application sees a disconnect: nobody reads the answer to its request."""
        answering = self._answering
        if answering is not None and not answering.response_complete:
            answering.disconnected = True
            answering.message_event.set()  # wakes `receive`, which then returns the disconnect

    def shutdown(self) -> None:
        cycle: Any = self.cycle  # None before the first request, unlike its type
        if cycle is None and not self.transport.is_closing():
            self.loop.call_later(_FIRST_REQUEST_S, self._shut_down)
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        HttpToolsProtocol.shutdown(self)
        self._close_tls()

    def send_400_response(self, msg: str) -> None:
        """Answer with `_malformed_answer`, and close. A request whose body is malformed is answered by this."""
        answering = self._answering
        if isinstance(answering, RequestResponseCycle) and not answering.response_complete:
            status = int(self._malformed_answer.split(maxsplit=2)[1])
            answering.scope[BAD_FRAMES] = status  # type: ignore[literal-required]  # a key of ours
            answering.waiting_for_100_continue = False
        self.transport.write(self._malformed_answer)
        self._disconnect_answering()
        self._end(sends=True)
