"""Request bodies: read within bounds, and decompressed."""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Receive

from app.errors import BadRequest, BodyTimeout, ClientGone, QueueFull, TooLarge, UnsupportedMedia

Headers = list[tuple[bytes, bytes]]  # as ASGI has them
RequestHeaders = dict[bytes, bytes]  # by name in lower case

_BEST_EFFORT = 0.75  # share of bytes and connections open to best-effort requests; the rest is for real time alone
_PIECE = 64 << 10  # bytes of a body that are decompressed at once: zlib copies those behind the end of a stream
_MOST_MEMBERS = 4096  # streams of a gzip body: bgzip makes one of each 64 KiB
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of what clients may send and hold, in bytes and seconds. `threads`: helper threads."""

    body: int
    json: int
    inflight: int
    body_timeout_s: float
    connections: int
    threads: int = 2

    @property
    def best_effort_inflight(self) -> int:
        """Bytes that all bodies may hold when a best-effort one is read. The largest allowed body always fits alone."""
        return max(int(self.inflight * _BEST_EFFORT), min(self.body, self.inflight))

    @property
    def best_effort_connections(self) -> int:
        """Connections that may be open when a best-effort request is accepted."""
        return max(1, int(self.connections * _BEST_EFFORT))


def client_request_id(headers: dict[bytes, bytes]) -> bytes | None:
    """The `X-Request-ID` of a client, or None if it sent none or an unusable one."""
    given = headers.get(b"x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) is not None else None


class HeldBodies:
    """Counts the bytes of all bodies, and of answers that clients have still to read, and bounds them together.

    `most`: that bound for the body in question. It is lower for a best-effort request.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0  # bytes that are not yet released

    def check(self, length: int, most: int) -> None:
        """Raise TooLarge or QueueFull for a body of this length."""
        if length > self.limits.body:
            raise TooLarge(f"body: expected at most {self.limits.body} bytes, got {length}")
        if self.held + length > most:
            raise QueueFull("too many bytes of bodies and unread answers are held at this moment", retry_after_s=1)

    def add(self, size: int) -> None:
        """Count so many more bytes of answers that are not read; fewer if negative."""
        self.held += size

    def hold(self, size: int, most: int, before: int = 0) -> None:
        """Count `size` more bytes as held, of a body of which `before` bytes are. Raises TooLarge or QueueFull."""
        self.check(before + size, most + before)
        self.held += size


async def read_body(receive: Receive, limit_s: float, take: Callable[[int], None]) -> bytes:
    """Read a whole body. `take` is called with the size of each part; it raises if there are too many bytes.

    Raises ClientGone or BodyTimeout.
    """
    parts: list[bytes] = []
    try:
        async with asyncio.timeout(limit_s):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client went away before its body had arrived")
                parts.append(message.get("body", b""))
                take(len(parts[-1]))
                if not message.get("more_body", False):
                    return b"".join(parts)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {limit_s:g} s") from None


def inflate(body: bytes, encoding: bytes, limit: int) -> bytes:
    """Decompress a gzip or deflate body to at most `limit` bytes. One of no encoding is returned as it is.

    Raises UnsupportedMedia, TooLarge, or BadRequest for a body that cannot be decompressed. Slow: call it on a helper
    thread.
    """
    name = encoding.decode("latin-1").strip().lower()
    name = "gzip" if name == "x-gzip" else name  # an old name of the same, RFC 9110, 8.4.1.3
    if name in ("", "identity"):
        return body
    if name not in ("gzip", "deflate"):
        raise UnsupportedMedia(f"Content-Encoding: expected gzip, deflate or identity, got {name[:40]!r}")
    wbits = 31 if name == "gzip" else 15
    if name == "deflate" and body[:1] and (body[0] & 0x0F != 8 or int.from_bytes(body[:2], "big") % 31):
        wbits = -15  # bare deflate without the zlib header, as some clients send it
    inflater, packed, start, members = zlib.decompressobj(wbits), memoryview(body), 0, 1
    parts: list[bytes] = []
    left = limit + 1
    while True:
        piece = packed[start : start + _PIECE]
        try:
            parts.append(inflater.decompress(piece, left))
        except zlib.error as exc:
            raise BadRequest(f"body: not valid {name}: {exc}") from None
        left -= len(parts[-1])
        if not left:
            raise TooLarge(f"body: expected at most {limit} bytes after decompression")
        start += len(piece) - len(inflater.unused_data)
        if start == len(packed):
            if not inflater.eof:
                raise BadRequest(f"body: truncated {name}")
            return b"".join(parts)
        if inflater.eof:
            if name != "gzip" or members == _MOST_MEMBERS:
                raise BadRequest(f"body: {len(packed) - start} bytes after the end of the {name} stream")
            inflater, members = zlib.decompressobj(wbits), members + 1
