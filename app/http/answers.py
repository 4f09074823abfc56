"""Header lines of answers, compression, and sending answers through ASGI."""

from __future__ import annotations

import zlib

from starlette.types import Send

from app.http.body import Headers

COMPRESS_FROM = 1024  # bytes: in smaller answers the extra header lines cost more than compression saves
QUICK_TO_COMPRESS = 16 << 10  # bytes that may be compressed on the event loop: some 0.2 ms
#: The header lines of a call's answer as one format: a list of headers costs three times as much. Its values: request
#: id; milliseconds in the queue, in the model and in all; rows of the batch; lines of content type; length of the body.
HEAD = (
    b"x-request-id: %s\r\nserver-timing: queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\nx-batch-size: %d\r\n"
    b"%scontent-length: %d\r\n"
)
JSON = b"content-type: application/json\r\n"
BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
CLOSE = b"connection: close\r\n"
COMPRESSED = b"content-encoding: %s\r\nvary: accept-encoding\r\n"


def wanted_encoding(accept: bytes | None, size: int) -> str | None:
    """The compression to use: gzip or deflate, or None if the client accepts neither or the answer is small."""
    if accept is None or size < COMPRESS_FROM:
        return None
    names = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, _, weight = part.partition(";")
        names[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ("gzip", "deflate") if names.get(name)), None)


def compress(body: bytes, encoding: str) -> bytes:
    """Compress at level 1: higher levels hardly shrink tensors further. Slow: large answers need a helper thread."""
    return zlib.compress(body, 1, 31 if encoding == "gzip" else 15)


async def respond(send: Send, status: int, head: bytes, body: bytes) -> None:
    """Send a whole answer. `head` must hold content-length."""
    await send({"type": "http.response.start", "status": status, "headers": header_list(head)})
    await send({"type": "http.response.body", "body": body})


def header_list(head: bytes) -> Headers:
    """Header lines as ASGI's list of pairs."""
    return [(name, value) for name, _, value in (line.partition(b": ") for line in head.splitlines())]
