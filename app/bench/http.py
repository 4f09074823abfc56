"""Parses HTTP/1.1 responses for a client with one request at a time per connection. No I/O.

A body ends by Content-Length, with its last chunk, or with the connection. Interim responses (1xx) are skipped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_HEAD = 65_536  # bytes; servers limit headers to 8 to 64 KiB


class Malformed(Exception):
    """The bytes are not an HTTP/1.1 response, or more than one."""


@dataclass(slots=True)
class Response:
    """A complete response. `head`: the status line and the headers, in lower case."""

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


_LENGTH, _CONNECTION, _ENCODING = map(line_of, (b"content-length", b"connection", b"transfer-encoding"))
_FRAMED_OTHERWISE = re.compile(rb"\r\n(?:connection|transfer-encoding):")


def _plain(data: bytes) -> Response | None:
    """Parse the usual response: status 200, a Content-Length, complete in one piece. None for any other.

    This is a shortcut at a third of the parser's cost, with the same result.
    """
    head, gap, body = data.partition(b"\r\n\r\n")
    if not gap or not head.startswith(b"HTTP/1.1 200 "):
        return None
    head = head.lower()
    if _FRAMED_OTHERWISE.search(head):
        return None
    length = value_of(head, _LENGTH)
    if not length.isdigit() or int(length) != len(body):
        return None
    return Response(200, head, body, True)


class ResponseParser:
    """Parses responses from pieces of bytes; after a complete response it is ready for the next one."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._reset()

    def _reset(self) -> None:
        self._buffer.clear()
        self._head = b""  # empty: not complete
        self._status = 0
        self._keep = True
        self._length: int | None = None  # of the body; None: chunked, or until the connection ends
        self._chunked = False
        self._chunks: list[bytes] = []

    def feed(self, data: bytes) -> Response | None:
        """Add bytes; returns the response if it is complete. Raises Malformed; the connection must be closed then."""
        if not self._buffer and not self._head:
            whole = _plain(data)
            if whole is not None:
                return whole
        self._buffer += data
        if not self._head and not self._read_head():
            return None
        if self._chunked:
            return self._ended(b"".join(self._chunks)) if self._read_chunks() else None
        if self._length is None or len(self._buffer) < self._length:
            return None
        body = bytes(self._buffer[: self._length])
        del self._buffer[: self._length]
        return self._ended(body)

    def eof(self) -> Response | None:
        """The connection has ended: returns the response if that completes it."""
        if not self._head or self._chunked or self._length is not None:
            return None
        body = bytes(self._buffer)
        self._buffer.clear()
        return self._ended(body)

    def _ended(self, body: bytes) -> Response:
        if self._buffer:
            raise Malformed("bytes after the answer")
        response = Response(self._status, self._head, body, self._keep)
        self._reset()
        return response

    def _read_head(self) -> bool:
        while True:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                if len(self._buffer) > _MAX_HEAD:
                    raise Malformed(f"a head of more than {_MAX_HEAD} bytes")
                return False
            lines = bytes(self._buffer[:end])
            del self._buffer[: end + 4]
            version, _, rest = lines.partition(b" ")
            if version not in (b"HTTP/1.1", b"HTTP/1.0") or not rest[:3].isdigit():
                raise Malformed(f"not an HTTP/1.1 answer: {lines[:40]!r}")
            self._status = int(rest[:3])
            if self._status >= 200:
                self._frame(lines.lower(), version == b"HTTP/1.1")
                return True

    def _frame(self, head: bytes, persistent: bool) -> None:
        """Find out how the body ends (RFC 9112, 6.3) and whether the connection stays open."""
        self._head = head
        connection = value_of(head, _CONNECTION)
        self._keep = b"close" not in connection and (persistent or b"keep-alive" in connection)
        self._chunked = value_of(head, _ENCODING).endswith(b"chunked")
        if self._chunked:
            return
        length = value_of(head, _LENGTH)
        if self._status in (204, 304):
            self._length = 0
        elif length:
            if not length.isdigit():
                raise Malformed(f"a Content-Length of {length!r}")
            self._length = int(length)
        else:
            self._keep = False

    def _read_chunks(self) -> bool:
        """Move complete chunks out of the buffer; returns whether the last chunk and the trailers have arrived."""
        buffer = self._buffer
        while True:
            line = buffer.find(b"\r\n")
            if line < 0:
                if len(buffer) > _MAX_HEAD:
                    raise Malformed("a chunk without a size")
                return False
            size = bytes(buffer[:line].partition(b";")[0]).strip()
            try:
                count = int(size, 16)
            except ValueError:
                raise Malformed(f"a chunk of size {size!r}") from None
            if count < 0:
                raise Malformed(f"a chunk of size {size!r}")
            if count == 0:  # then trailers, and an empty line
                end = line if buffer[line : line + 4] == b"\r\n\r\n" else buffer.find(b"\r\n\r\n", line)
                if end < 0:
                    return False
                del buffer[: end + 4]
                return True
            end = line + 2 + count
            if len(buffer) < end + 2:
                return False
            if buffer[end : end + 2] != b"\r\n":
                raise Malformed("a chunk longer than its size")
            self._chunks.append(bytes(buffer[line + 2 : end]))
            del buffer[: end + 2]
