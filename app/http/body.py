"""HTTP for the inference path: reading a body within bounds, compression, sending an answer."""

from __future__ import annotations

import asyncio
import re
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

_LINGER_S = 5.0  # how long a client may go on sending a body that is not read
_BEST_EFFORT = 0.75  # of the bytes and connections: beyond it the rest is for real-time requests alone
COMPRESS_FROM = 1024  # bytes; for smaller answers the header costs more than compression saves
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
QUICK_TO_COMPRESS = 16 << 10  # bytes that may be compressed on the event loop: some 0.2 ms


@dataclass(frozen=True, slots=True)
class Limits:
    """What one client may send or hold, in bytes and seconds. `threads`: beside the event loop."""

    body: int
    json: int
    inflight: int
    pixels: int
    body_timeout_s: float
    connections: int
    threads: int = 2

    @property
    def best_effort_inflight(self) -> int:
        """Bytes that all bodies may hold together with a best-effort one. The largest body always has room alone."""
        return max(int(self.inflight * _BEST_EFFORT), min(self.body, self.inflight))

    @property
    def best_effort_connections(self) -> int:
        """Connections that may be open where a best-effort request is taken."""
        return max(1, int(self.connections * _BEST_EFFORT))


def given_id(headers: dict[bytes, bytes]) -> bytes | None:
    """The id that a client gave its request, if it is one."""
    given = headers.get(b"x-request-id")
    return given if given is not None and _REQUEST_ID.fullmatch(given) is not None else None


class BodyReader:
    """Reads request bodies, and bounds the bytes that all requests together hold.

    `most`: how many that may be with the body in question, which is less for a best-effort one.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0  # bytes read and not yet released

    def check(self, headers: dict[bytes, bytes], most: int) -> int:
        """The declared length, or -1 for a chunked body. Raises what is known to be wrong before a byte is read."""
        declared = headers.get(b"content-length")
        if declared is None:
            if b"transfer-encoding" in headers:
                return -1
            raise LengthRequired("a body is needed: expected a Content-Length header or a chunked body")
        try:
            length = int(declared)
        except ValueError:
            raise BadRequest(f"Content-Length: expected a number, got {declared[:20]!r}") from None
        self._check_size(length, most)
        return length

    def reserve(self, length: int, most: int) -> None:
        """Count a body of this length as held before it has come. Raises TooLarge or QueueFull."""
        if length > self.limits.body or self.held + length > most:
            self._check_size(length, most)
        self.held += length

    def _check_size(self, length: int, most: int) -> None:
        if length > self.limits.body:
            raise TooLarge(f"body: expected at most {self.limits.body} bytes, got {length}")
        if self.held + length > most:
            raise QueueFull("too many request bodies are held at this moment", retry_after_s=1)

    async def read(self, receive: Receive, most: int) -> bytes:
        """The whole body. Its bytes count as held until `release`. Raises ClientGone, TooLarge or BodyTimeout.

        Most bodies have arrived already; they cost neither a timer nor a turn of the event loop.
        """
        waiting = cast("Coroutine[Any, Any, Message]", receive())
        try:
            yielded = waiting.send(None)
        except StopIteration as stop:
            message: Message = stop.value
            if not message.get("more_body", False):
                body: bytes = message.get("body", b"")
                self.hold(len(body), most)
                if message["type"] == "http.disconnect":
                    raise ClientGone("the client went away before its body had arrived") from None
                return body
            return await self._read_rest(receive, message, None, most)
        return await self._read_rest(receive, None, _resumed(waiting, yielded), most)

    async def _read_rest(
        self, receive: Receive, first: Message | None, pending: Awaitable[Message] | None, most: int
    ) -> bytes:
        """The rest of a body: `first` is its first message, or `pending` is a wait for it that has begun."""
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.body_timeout_s):
                message = first if first is not None else await (pending or receive())
                while True:
                    if message["type"] == "http.disconnect":
                        raise ClientGone("the client went away before its body had arrived")
                    part = message.get("body", b"")
                    self.hold(len(part), most, size)
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

    def hold(self, size: int, most: int, before: int = 0) -> None:
        """Count `size` more bytes of a body as held; `before` of it are already. Raises TooLarge or QueueFull."""
        if before + size > self.limits.body:
            raise TooLarge(f"body: expected at most {self.limits.body} bytes")
        if self.held + size > most:
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
        except BaseException as exc:  # mostly CancelledError: it is meant for the inner coroutine
            step = partial(waiting.throw, exc)
        else:
            step = partial(waiting.send, sent)
        try:
            yielded = step()
        except StopIteration as stop:
            return cast(Message, stop.value)


def inflate(body: bytes, encoding: bytes, limit: int) -> bytes:
    """A gzip or deflate body, decompressed to at most `limit` bytes.

    Raises UnsupportedMedia, TooLarge, or BadRequest for a body that cannot be decompressed. Slow: not for the event
    loop.
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
    """The compression to answer with: gzip or deflate, if the client accepts it and the answer is large enough."""
    if accept is None or size < COMPRESS_FROM:
        return None
    names = {}
    for part in accept.decode("latin-1").lower().split(","):
        name, _, weight = part.partition(";")
        names[name.strip()] = weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return next((name for name in ("gzip", "deflate") if names.get(name)), None)


def compress(body: bytes, encoding: str) -> bytes:
    """Compress at level 1: higher levels hardly shrink tensors further. Slow: not for the event loop."""
    compressor = zlib.compressobj(1, zlib.DEFLATED, 31 if encoding == "gzip" else 15)
    return compressor.compress(body) + compressor.flush()


async def respond_and_close(send: Send, status: int, headers: Headers, body: bytes, receive: Receive) -> None:
    """Send a whole answer to a request whose body was not read, and close the connection.

    To close a connection with unread bytes resets it, and the client loses the answer. So the answer goes out first,
    and what the client still sends is read and dropped for a while.
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


def closing_send(send: Send) -> Send:
    """`send`, with `Connection: close` added to the answer: the server is shutting down."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    return sending


def header_list(head: bytes, closing: bool) -> Headers:
    """Header lines as ASGI's list of pairs; `closing` adds `Connection: close`."""
    headers = [(name, value) for name, _, value in (line.partition(b": ") for line in head.splitlines())]
    return [*headers, (b"connection", b"close")] if closing else headers
