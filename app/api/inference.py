"""The inference path: an ASGI application in front of FastAPI, which answers inference requests itself.

One call: find the model, check admission, read the body, decode it, take slots and write the inputs into them, wait,
encode the outputs, answer. Every other request is passed on to FastAPI. The path is no route of FastAPI because such a
route costs more than all the rest of the path together (measured with 64 connections: 0.93 of a bare echo for this
skeleton, 0.42 to 0.45 as a route).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import cast

from app.api.access import PROBES, check_key
from app.api.codecs.base import Codec, DecodedCall, RequestHeaders
from app.api.codecs.friendly import Friendly
from app.api.codecs.v1 import V1
from app.api.codecs.v2 import V2
from app.api.disconnects import DisconnectWatcher
from app.api.errors import error_parts
from app.api.http import (
    ASGIApp,
    BodyReader,
    Headers,
    Limits,
    Receive,
    Scope,
    Send,
    closing_send,
    compress,
    header_list,
    inflate,
    respond,
    respond_and_close,
    wanted_encoding,
)
from app.contract import Catalog, Lease, Served
from app.errors import BadRequest, MethodNotAllowed, ModelFailed, NotReady, StarlingError
from app.logs import CauseLog

log = logging.getLogger("starling.http")

_PATHS = re.compile(
    r"/v2/models/(?P<v2>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer"
    r"|/v1/models/(?P<v1>[^/:]+)(?:/versions/(?P<v1_version>[^/:]+))?:predict"
    r"|/predict/(?P<friendly>[^/]+)"
)
_OFF_LOOP_BINARY = 4 << 20  # bytes from which the copy of an input into the slots leaves the loop: a millisecond
_ROUTES, _LONGEST_ROUTE = 1024, 512  # paths remembered, and characters of each: clients may send any number of others
#: The head of an answer, formatted in one piece: a list of headers costs three times as much.
_HEAD = (
    b"x-request-id: %s\r\nserver-timing: queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f\r\nx-batch-size: %d\r\n"
    b"%scontent-length: %d\r\n"
)
_JSON = b"content-type: application/json\r\n"
_BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
_ANSWER = "starling.answer"  # the ASGI extension that takes a whole answer at once, see app/protocol.py
_V2, _V1, _FRIENDLY = V2(), V1(), Friendly()
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


@dataclass(frozen=True, slots=True)
class Route:
    """What a path means: its protocol and its model."""

    codec: Codec
    model: str
    version: str | None


class InferencePath:
    """ASGI application that answers inference requests and passes all others to `app`.

    The lifespan state must hold `catalog` (contract.Catalog) and `health` (contract.Health). `connections` returns how
    many connections the server has open.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, *, api_key: str | None = None, connections: Callable[[], int] = lambda: 0
    ) -> None:
        self._app = app
        self._limits = limits
        self._bodies = BodyReader(limits)
        self._disconnects = DisconnectWatcher()
        self._causes = CauseLog(log)
        self._key = api_key.encode() if api_key else None
        self._connections = connections
        self._routes: dict[str, Route] = {}
        self._request_ids = (
            b"%s-%x" % (prefix, n) for prefix in [secrets.token_hex(4).encode()] for n in itertools.count()
        )

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """A plain function that returns a coroutine: one coroutine fewer to resume whenever the call goes on."""
        if scope["type"] != "http":
            return self._app(scope, receive, send)
        path = scope["path"]
        if (self._key is not None or self._connections() > self._limits.connections) and path not in PROBES:
            return self._guarded(scope, receive, send)
        route = self._routes.get(path) or self._match(path)
        if route is not None:
            return self._infer(route, scope, receive, send)
        return self._app(scope, receive, closing_send(send) if scope["state"]["health"].closing else send)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """A request that needs the key, or that comes while too many connections are open."""
        try:
            if self._key is not None:
                check_key(dict(scope["headers"]), self._key)
            if self._connections() > self._limits.connections:
                raise NotReady(f"more than {self._limits.connections} connections are open", retry_after_s=1)
        except StarlingError as exc:
            await self._refuse(exc, scope, send, [], receive)
            return
        route = self._routes.get(scope["path"]) or self._match(scope["path"])
        if route is not None:
            await self._infer(route, scope, receive, send)
        else:
            await self._app(scope, receive, closing_send(send) if scope["state"]["health"].closing else send)

    def _match(self, path: str) -> Route | None:
        found = _PATHS.fullmatch(path)
        if found is None:
            return None
        if found["v2"]:
            route = Route(_V2, found["v2"], found["version"])
        elif found["v1"]:
            route = Route(_V1, found["v1"], found["v1_version"])
        else:
            route = Route(_FRIENDLY, found["friendly"], None)
        if len(path) <= _LONGEST_ROUTE:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[path] = route
        return route

    async def _refuse(self, exc: Exception, scope: Scope, send: Send, extra: Headers, unread: Receive | None) -> None:
        """Answer with an error. `unread` gives the rest of the body; None: the body has been read."""
        status, headers, body = error_parts(exc)
        headers += extra
        # After 408, and 413 of a chunked body, the rest may never end. A body of a declared length is read to its end
        # and thrown away: a client that is still sending would see a broken connection instead of the answer.
        endless = status == 408 or (status == 413 and b"content-length" not in dict(scope["headers"]))
        closes = scope["state"]["health"].closing or endless or status == 503
        if closes:
            headers.append((b"connection", b"close"))
        if closes and unread is not None:
            await respond_and_close(send, status, headers, body, unread)
        else:
            await respond(send, status, headers, body)

    async def _infer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """One request from its first byte to its last. No other function answers it."""
        arrived = time.monotonic_ns()
        headers: RequestHeaders = dict(scope["headers"])
        request_id = headers.get(b"x-request-id")
        if request_id is None or _REQUEST_ID.fullmatch(request_id) is None:
            request_id = next(self._request_ids)
        extra: Headers = [(b"x-request-id", request_id)]
        served: Served | None = None
        unread: Receive | None = receive
        try:
            if scope["method"] != "POST":
                extra.append((b"allow", b"POST"))
                raise MethodNotAllowed(f"{scope['method']} {scope['path']}: expected POST")
            state = scope["state"]
            served = cast("Catalog", state["catalog"]).find(route.model, route.version)
            served.admit(1)
            self._bodies.check(headers)
            body = await self._bodies.read(receive)
            unread = None
            payload, head = await self._call(route.codec, served, headers, body, receive, arrived, request_id)
        except Exception as exc:
            if not isinstance(exc, StarlingError):
                log.exception("unexpected error on %s", scope["path"])
            if served is not None:
                served.finish(exc.code if isinstance(exc, StarlingError) else "internal", time.monotonic_ns() - arrived)
                self._log_cause(exc, served, request_id)
            await self._refuse(exc, scope, send, extra, unread)
            log.debug("%s %s: %s", request_id.decode(), scope["path"], exc)
            return
        closing = state["health"].closing
        extensions = scope.get("extensions")
        if extensions and _ANSWER in extensions and extensions[_ANSWER](head, payload, closing):
            return
        await respond(send, 200, header_list(head, closing), payload)

    async def _call(
        self,
        codec: Codec,
        served: Served,
        headers: RequestHeaders,
        body: bytes,
        receive: Receive,
        arrived: int,
        request_id: bytes,
    ) -> tuple[bytes, bytes]:
        """Run the request in `body`. Returns the answer's body and its header lines. Raises a leaf of StarlingError."""
        bodies = self._bodies
        held = len(body)
        try:
            if b"content-encoding" in headers:
                body = await self._inflated(headers, body)
                bodies.hold(len(body))
                held += len(body)
            if codec.slow_to_decode(served, headers, body):
                call = await asyncio.to_thread(codec.decode, served, headers, body, self._limits)
            else:
                call = codec.decode(served, headers, body, self._limits)
            with self._lease(served, call, arrived) as lease:
                for index, values in enumerate(call.arrays):
                    if values.nbytes > _OFF_LOOP_BINARY:
                        await _to_its_end(lease.write, index, values)
                    else:
                        lease.write(index, values)
                future = lease.run()
                self._disconnects.begin(future.get_loop(), receive, lease)
                try:
                    answer = await future
                finally:
                    self._disconnects.end(lease)
        finally:
            bodies.release(held)
        if codec.slow_to_encode(served, call):
            payload, header_length = await asyncio.to_thread(codec.encode, served, call, answer)
        else:
            payload, header_length = codec.encode(served, call, answer)
        total = time.monotonic_ns() - arrived
        kind = _JSON if header_length is None else _BINARY % header_length
        if (wanted := wanted_encoding(headers.get(b"accept-encoding"), len(payload))) is not None:
            payload = await asyncio.to_thread(compress, payload, wanted)
            kind += b"content-encoding: %s\r\nvary: accept-encoding\r\n" % wanted.encode()
        head = _HEAD % (
            request_id, answer.queue_ns / 1e6, answer.compute_ns / 1e6, total / 1e6, answer.batch, kind, len(payload),
        )  # fmt: skip
        served.finish("ok", total)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s: ok, %.3f ms, batch %d", request_id.decode(), served.info.name, total / 1e6, answer.batch)
        return payload, head

    def _log_cause(self, exc: Exception, served: Served, request_id: bytes) -> None:
        """Log what the model's own code did wrong, if that is why the request failed."""
        cause = exc.cause if isinstance(exc, StarlingError) else None
        if cause is None and isinstance(exc, ModelFailed):
            cause = exc  # nothing was raised: the model broke its promise
        if cause is not None:
            info = served.info
            self._causes.log(cause, f"{info.name} version {info.version}", request_id.decode())

    async def _inflated(self, headers: RequestHeaders, body: bytes) -> bytes:
        encoding = headers[b"content-encoding"]
        if encoding.strip().lower() in (b"", b"identity"):
            return body
        return await asyncio.to_thread(inflate, body, encoding, self._limits.body)

    def _lease(self, served: Served, call: DecodedCall, arrived: int) -> Lease:
        limit = served.info.batching.max_queue
        if call.rows > limit:
            raise BadRequest(f"{call.rows} rows in one request: the queue of model {served.info.name!r} holds {limit}")
        return served.lease(
            call.rows, lengths=call.lengths, priority=call.priority, timeout_us=call.timeout_us,
            parameters=call.parameters, arrived_ns=arrived,
        )  # fmt: skip


async def _to_its_end(function: Callable[..., None], *args: object) -> None:
    """Run on a thread and wait for its end, even when cancelled: until then it writes into slots."""
    running = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
