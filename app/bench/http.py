"""HTTP/1.1 answers, as far as a client that has one request at a time on a connection needs them. No I/O.

A body ends by Content-Length, by its last chunk, or by the end of the connection. Interim answers (1xx) are
passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_MAX_HEAD = 65_536  # bytes; servers bound what they accept at 8 to 64 KiB, so no honest answer has more


class Malformed(Exception):
    """What came is no HTTP/1.1 answer, or more than one."""


@dataclass(slots=True)
class Response:
    """A whole answer. `head` is in lower case, from the line break before the first header to the last, inclusive."""

    status: int
    head: bytes
    body: bytes
    keep: bool  # another request may be sent on this connection

    def header(self, name: bytes) -> bytes:
        """The value of the first header of this name, which is in lower case; empty if there is none."""
        return value_of(self.head, line_of(name))


def line_of(name: bytes) -> bytes:
    """What a header's line begins with in a `Response.head`, the line break before it included."""
    return b"\r\n" + name + b":"


def value_of(head: bytes, line: bytes) -> bytes:
    """The value of the first header whose line begins so; empty if there is none."""
    at = head.find(line)
    if at < 0:
        return b""
    at += len(line)
    return head[at : head.index(b"\r\n", at)].strip()


_LENGTH, _CONNECTION, _ENCODING = map(line_of, (b"content-length", b"connection", b"transfer-encoding"))
_FRAMED_OTHERWISE = re.compile(rb"\r\n(?:connection|transfer-encoding):")


def _plain(data: bytes) -> Response | None:
    """The answer that nearly all are: status 200, a Content-Length, all of it in one piece. None for any other.

    It is the parser's short cut, at a third of the cost; the parser gives the same answer for the same bytes.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0 or not data.startswith(b"HTTP/1.1 200 "):
        return None
    head = data[data.index(b"\r\n") : end + 2].lower()
    if _FRAMED_OTHERWISE.search(head):
        return None
    length, body = value_of(head, _LENGTH), data[end + 4 :]
    if not length.isdigit() or int(length) != len(body):
        return None
    return Response(200, head, body, True)


class ResponseParser:
    """Give it bytes as they come; it gives back an answer when one is complete, and is then ready for the next."""

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
        """Raises Malformed; the connection is then of no further use."""
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
        """The connection has ended: the answer that this completes, if it does."""
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
            lines = bytes(self._buffer[: end + 2])
            del self._buffer[: end + 4]
            version, _, rest = lines.partition(b" ")
            if version not in (b"HTTP/1.1", b"HTTP/1.0") or not rest[:3].isdigit():
                raise Malformed(f"not an HTTP/1.1 answer: {lines[:40]!r}")
            self._status = int(rest[:3])
            if self._status >= 200:
                self._frame(lines[lines.index(b"\r\n") :].lower(), version == b"HTTP/1.1")
                return True

    def _frame(self, head: bytes, persistent: bool) -> None:
        """How the body ends (RFC 9112, 6.3), and whether the connection goes on."""
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
        """Move whole chunks out of the buffer; whether the last one has come, and the trailers."""
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
