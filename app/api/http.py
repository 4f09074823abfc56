"""The few HTTP pieces the inference path needs: reading a body within bounds, compression, sending an answer."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import coroutine
from typing import Any, cast

from app.errors import BadRequest, BodyTimeout, ClientGone, LengthRequired, QueueFull, TooLarge, UnsupportedMedia

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

_LINGER_S = 5.0  # for a client to finish sending what nobody will read
_COMPRESS_FROM = 1024  # bytes; below it the header costs more than compression saves


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may send or hold, in bytes and seconds."""

    body: int
    json: int
    inflight: int
    pixels: int
    body_timeout_s: float
    connections: int


class Bodies:
    """Reads request bodies; holds the count of all bytes read and not yet given back."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    def check(self, headers: dict[bytes, bytes]) -> int:
        """The declared length, or -1 for a chunked body. Raises before a byte is read."""
        declared = headers.get(b"content-length")
        if declared is None:
            if b"transfer-encoding" in headers:
                return -1
            raise LengthRequired("a body is needed: expected a Content-Length header or a chunked body")
        try:
            length = int(declared)
        except ValueError:
            raise BadRequest(f"Content-Length: expected a number, got {declared[:20]!r}") from None
        if length > self.limits.body:
            raise TooLarge(f"body: expected at most {self.limits.body} bytes, got {length}")
        if self.held + length > self.limits.inflight:
            raise QueueFull("too many request bodies are held at this moment", retry_after_s=1)
        return length

    async def read(self, receive: Receive) -> bytes:
        """The whole body. Its bytes count as held until `release`. Raises ClientGone, TooLarge or BodyTimeout.

        A body that is there already, as most are, costs neither a timer nor a turn of the loop.
        """
        waiting = cast("Coroutine[Any, Any, Message]", receive())
        try:
            yielded = waiting.send(None)
        except StopIteration as stop:
            message: Message = stop.value
            if not message.get("more_body", False):
                body: bytes = message.get("body", b"")
                self.hold(len(body))
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client went away before its body had arrived") from None
                return body
            return await self._read_rest(receive, message, None)
        return await self._read_rest(receive, None, _resumed(waiting, yielded))

    async def _read_rest(self, receive: Receive, first: Message | None, pending: Awaitable[Message] | None) -> bytes:
        """The rest of a body of which the first message has come, or is waited for already."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_timeout_s):
                message = first if first is not None else await (pending or receive())
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientGone("the client went away before its body had arrived")
                    part = message.get("body", b"")
                    self.hold(len(part), size)
                    size += len(part)
                    parts.append(part)
                    if not message.get("more_body", False):
                        return b"".join(parts)
                    message = await receive()
        except TimeoutError:
            self.release(size)
            raise BodyTimeout(f"the body did not arrive within {self.limits.body_timeout_s:g} s") from None
        except BaseException:
            self.release(size)
            raise

    def hold(self, size: int, before: int = 0) -> None:
        """Count `size` bytes more as held, of a body of which `before` are. Raises TooLarge or QueueFull."""
        if before + size > self.limits.body:
            raise TooLarge(f"body: expected at most {self.limits.body} bytes")
        if self.held + size > self.limits.inflight:
            raise QueueFull("too many request bodies are held at this moment", retry_after_s=1)
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size


@coroutine
def _resumed(waiting: Coroutine[Any, Any, Message], yielded: Any) -> Generator[Any, Any, Message]:
    """Await a coroutine that has already been advanced to its first suspension."""
    while True:
        try:
            sent = yield yielded
        except BaseException as exc:  # CancelledError above all: it belongs to the coroutine we stand for
            step = partial(waiting.throw, exc)
        else:
            step = partial(waiting.send, sent)
        try:
            yielded = step()
        except StopIteration as stop:
            return cast(Message, stop.value)


def inflate(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A gzip or deflate body, decoded. Never yields more than `limit` bytes, whatever the body claims.

    Raises UnsupportedMedia, TooLarge, or BadRequest for what does not decode. Slow: not for the event loop.
    """
    name = encoding.decode("latin-1").strip().lower()
    if name not in ("gzip", "deflate"):
        raise UnsupportedMedia(f"Content-Encoding: expected gzip, deflate or identity, got {name[:40]!r}")
    wbits = 31 if name == "gzip" else 15
    if name == "deflate" and body[:1] and (body[0] & 0x0F != 8 or int.from_bytes(body[:2], "big") % 31):
        wbits = -15  # bare deflate without the zlib header, as some clients send it
    inflater = zlib.decompressobj(wbits)
    try:
        data = inflater.decompress(body, limit + 1)
    except zlib.error as exc:
        raise BadRequest(f"body: not valid {name}: {exc}") from None
    if len(data) > limit:
        raise TooLarge(f"body: expected at most {limit} bytes after decompression")
    if not inflater.eof:
        raise BadRequest(f"body: truncated {name}")
    if inflater.unused_data:
        raise BadRequest(f"body: {len(inflater.unused_data)} bytes after the end of the {name} stream")
    return data


def wanted_encoding(accept: bytes | None, size: int) -> str | None:
    """The compression to answer with, or None: the first of gzip and deflate that the client names and that pays."""
    if accept is None or size < _COMPRESS_FROM:
        return None
    names = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, _, weight = part.partition(";")
        names[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ("gzip", "deflate") if names.get(name)), None)


def compress(body: bytes, encoding: str) -> bytes:
    """Level 1: tensors hardly shrink at any level. Slow: not for the event loop."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return compressor.compress(body) + compressor.flush()


async def respond_and_close(send: Send, status: int, headers: Headers, body: bytes, receive: Receive) -> None:
    """As `respond`, where the connection is to be closed and the request's body was not read.

    Closing on bytes not read resets the connection, and the answer is lost with it: so the answer goes out first,
    and for a moment what still comes is read and forgotten.
    """
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": True})
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_S):
            while (message := await receive())["type"] == "http.request" and message.get("more_body", False):
                pass
    await send({"type": "http.response.body", "body": b""})


async def respond(send: Send, status: int, headers: Headers, body: bytes) -> None:
    """Send a whole answer. `headers` must hold content-length."""
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
