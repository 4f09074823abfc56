"""Parts of PatchedProtocol: flow control, writing answers, declining upgrades, and what clients have not read."""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable, Collection, Iterable

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_OFFER = (b"upgrade", b"http2-settings")
_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"


class PipelineFlow(FlowControl):
    """Flow control that resumes reading only when no pipelined request is waiting.

    uvicorn itself resumes after each answer, so all requests of a client that pipelines far ahead would fill memory.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Collection[object]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        if not self._pipeline:
            super().resume_reading()


class OneWrite:
    """Stands between a RequestResponseCycle and its transport; `end` closes the connection: PatchedProtocol's `_end`.

    uvicorn writes the head and the body of an answer separately. Clients that read the status alone (tritonclient.aio's
    `is_model_ready`) never release a connection whose body arrives after its head. So the head is kept here until the
    body is written, or the answer ends without one.

    A client of HTTP/1.0 does not know chunks, in which uvicorn sends an answer without a length. It gets the bytes
    without their frames; the end of the connection is their end.
    """

    __slots__ = ("_chunked", "_cycle", "_end", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle, end: Callable[..., None]) -> None:
        self._cycle = cycle
        self._end = end
        self._transport = cycle.transport
        self._head: bytes | None = b""  # None: it has been written
        self._chunked = False  # the data is chunks, for a client of HTTP/1.0

    def write(self, data: bytes) -> None:
        if self._chunked:
            size, _, chunk = data.partition(b"\r\n")
            data = chunk[: int(size, 16)]
        if self._head is None or not self._cycle.response_started:  # 100 Continue precedes an answer
            self._transport.write(data)
        elif self._head:
            if data:  # asyncio's loop would try to send an empty one for ever
                self._transport.writelines((self._head, data))
                self._head = None
            else:
                self.flush()
        else:
            self._chunked = self._cycle.scope["http_version"] == "1.0" and _CHUNKED in data
            self._head = data.replace(_CHUNKED, b"\r\n", 1) if self._chunked else data

    def flush(self) -> None:
        """Write the head of an answer that had no body, such as that to HEAD."""
        if self._head:
            self._transport.write(self._head)
            self._head = None

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self.flush()
        self._end(sends=self._cycle.more_body)


def without_upgrade(method: bytes, url: bytes, version: str, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The head of the same request without its offer to upgrade. Header names are in lower case.

    Java's client offers HTTP/2 with its first request (RFC 7540, 3.2). A server that declines answers the request as if
    nothing had been offered, but the parser stops at such a head and drops the body after it.
    """
    lines = [b"%s %s HTTP/%s" % (method, url, version.encode())]
    for name, value in headers:
        if name == b"connection":
            value = b", ".join(token.strip() for token in value.split(b",") if token.strip().lower() not in _OFFER)
        if name not in _OFFER and (value or name != b"connection"):
            lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join(lines) + b"\r\n\r\n"


def unacknowledged(transport: asyncio.Transport) -> int:
    """Bytes that the client's system has not acknowledged yet; 0 if that cannot be found out.

    Bytes in the transport's own buffer are not counted, but that is empty whenever the kernel's queue is.
    """
    try:
        descriptor = transport.get_extra_info("socket").fileno()
        (count,) = struct.unpack("i", fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)))
    except (AttributeError, OSError):
        return 0
    return int(count)
