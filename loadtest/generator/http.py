"""Parses HTTP/1.1 responses for a client with one request at a time per connection. No I/O.

A body ends by Content-Length, with its last chunk, or with the connection. Interim responses (1xx) are skipped.
"""

from __future__ import annotations

from dataclasses import dataclass

import httptools

_MAX_HEAD = 65_536  # bytes; servers limit headers to 8 to 64 KiB
_FRAMES = (b"\r\ncontent-length:", b"\r\ntransfer-encoding:")


class Malformed(Exception):
    """The bytes are not an HTTP/1.1 response, or more than one."""


@dataclass(slots=True)
class Response:
    """A complete response. `head`: the headers in lower case, each with a line break before it."""

    status: int
    head: bytes
    body: bytes
    keep: bool  # another request may be sent on this connection

    def header(self, name: bytes) -> bytes:
        """The value of the first header of this name, which is in lower case; empty if there is none."""
        return value_of(self.head, line_of(name))


def line_of(name: bytes) -> bytes:
    """How the line of this header begins in a `Response.head`, with the line break before it."""
    return b"\r\n" + name + b":"


def value_of(head: bytes, line: bytes) -> bytes:
    """The value of the first header line that begins with `line`; empty if there is none."""
    return head.partition(line)[2].partition(b"\r\n")[0].strip()


class ResponseParser:
    """Parses responses from pieces of bytes; after a complete response it is ready for the next one."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._lines: list[bytes] = []
        self._head = b""  # empty: not complete
        self._body: list[bytes] = []
        self._unread = 0  # bytes of a head that is not complete
        self._response: Response | None = None

    def feed(self, data: bytes) -> Response | None:
        """Add bytes; returns the response if it is complete. Raises Malformed; the connection must be closed then."""
        self._unread += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as exc:
            raise Malformed(str(exc) or "not an HTTP/1.1 answer") from None
        response, self._response = self._response, None
        if response is not None:
            if self._lines or self._head:
                raise Malformed("bytes after the answer")
            self._unread = 0
        elif not self._head and self._unread > _MAX_HEAD:
            raise Malformed(f"a head of more than {_MAX_HEAD} bytes")
        return response

    def eof(self) -> Response | None:
        """The connection has ended: returns the response if that completes it."""
        if not self._head or any(frame in self._head for frame in _FRAMES):
            return None
        return Response(self._parser.get_status_code(), self._head, b"".join(self._body), False)

    # what the parser calls

    def on_message_begin(self) -> None:
        if self._response is not None:
            raise Malformed("bytes after the answer")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._lines.append(b"\r\n%b: %b" % (name, value))

    def on_headers_complete(self) -> None:
        self._head = b"".join(self._lines).lower() or b"\r\n"
        self._lines.clear()

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._response = Response(status, self._head, b"".join(self._body), self._parser.should_keep_alive())
        self._lines.clear()  # of trailers
        self._head = b""
        self._body.clear()
