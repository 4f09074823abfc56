"""The inference path: an ASGI application in front of FastAPI that takes the calls itself.

One call: find the model, ask whether it may come, read the body, decode, take slots and write them, wait, encode,
answer. Everything else is passed on. It stands in front because a route inside FastAPI costs more than all the rest of
the path together (measured with 64 connections: 0.93 of a bare echo for this skeleton, 0.42 to 0.45 as a route).
"""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from app.api.codec import InferCall, decode, encode, load_json
from app.api.friendly import FriendlyCall, decode_friendly, present_friendly
from app.api.handlers import error_parts
from app.api.http import (
    ASGIApp,
    Bodies,
    Headers,
    Limits,
    Message,
    Receive,
    Scope,
    Send,
    compress,
    inflate,
    respond,
    wanted_encoding,
)
from app.api.v1 import decode_v1, encode_v1
from app.api.watch import Watch
from app.contract import Answer, Catalog, Health, Served
from app.errors import BadRequest, MethodNotAllowed, NotReady, StarlingError, TooLarge, Unauthorized

log = logging.getLogger("starling.http")

_PATHS = re.compile(
    r"/v2/models/(?P<v2>[^/]+)(?:/versions/(?P<version>[^/]+))?/infer"
    r"|/v1/models/(?P<v1>[^/:]+)(?:/versions/(?P<v1_version>[^/:]+))?:predict"
    r"|/predict/(?P<friendly>[^/]+)"
)
#: Never need a key: orchestrators have none.
_PROBES = frozenset({"/v2/health/live", "/v2/health/ready", "/livez", "/readyz", "/healthz", "/ping"})
_OFF_LOOP = 128 << 10  # JSON bytes from which decoding leaves the loop: about a millisecond
_OFF_LOOP_BINARY = 4 << 20  # binary bytes from which the copy into the slots does
_ROUTES = 1024  # distinct paths remembered
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


@dataclass(slots=True)
class Decoded:
    """A decoded body of any of the three protocols, with the way back."""

    call: InferCall | FriendlyCall
    encode: Callable[[Answer], tuple[bytes, int | None]]


@dataclass(frozen=True, slots=True)
class Route:
    """Where a path leads: which protocol, which model."""

    kind: str  # v2, v1 or friendly
    model: str
    version: str | None


class InferencePath:
    """ASGI application: answers inference calls, passes everything else to `app`.

    Needs `catalog` (contract.Catalog) and `health` (contract.Health) in the lifespan state. `connections` counts the
    server's open ones.
    """

    def __init__(
        self, app: ASGIApp, limits: Limits, *, api_key: str | None = None, connections: Callable[[], int] = lambda: 0
    ) -> None:
        self._app = app
        self._limits = limits
        self._bodies = Bodies(limits)
        self._watch = Watch()
        self._key = api_key.encode() if api_key else None
        self._connections = connections
        self._routes: dict[str, Route] = {}
        self._request_ids = (
            b"%s-%x" % (prefix, n) for prefix in [secrets.token_hex(4).encode()] for n in itertools.count()
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        route = self._routes.get(path) or self._match(path)
        try:
            if self._key is not None and path not in _PROBES:
                self._check_key(dict(scope["headers"]))
            if self._connections() > self._limits.connections and path not in _PROBES:
                raise NotReady(f"more than {self._limits.connections} connections are open", retry_after_s=1)
        except StarlingError as exc:
            await self._refuse(exc, scope, send)
            return
        if route is None:
            closing = scope["state"]["health"].closing
            await self._app(scope, receive, _closing(send) if closing else send)
        else:
            await self._infer(route, scope, receive, send)

    def _match(self, path: str) -> Route | None:
        found = _PATHS.fullmatch(path)
        if found is None:
            return None
        if found["v2"]:
            route = Route("v2", found["v2"], found["version"])
        elif found["v1"]:
            route = Route("v1", found["v1"], found["v1_version"])
        else:
            route = Route("friendly", found["friendly"], None)
        if len(self._routes) >= _ROUTES:  # unknown models: anybody may send any number of paths
            self._routes.clear()
        self._routes[path] = route
        return route

    def _check_key(self, headers: dict[bytes, bytes]) -> None:
        assert self._key is not None
        given = headers.get(b"x-api-key")
        if given is None:
            scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
            given = token.strip() if scheme.lower() == b"bearer" else None
        if given is None:
            raise Unauthorized("an API key is needed: X-API-Key, or Authorization: Bearer")
        if not hmac.compare_digest(given, self._key):
            raise Unauthorized("the API key is wrong")

    async def _refuse(self, exc: Exception, scope: Scope, send: Send, extra: Headers | None = None) -> None:
        status, headers, body = error_parts(exc)
        headers += extra or []
        if scope["state"]["health"].closing or status in (408, 413, 503):
            headers.append((b"connection", b"close"))  # 408, 413: the rest of the body is not worth reading
        await respond(send, status, headers, body)

    async def _infer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """One call, from its first byte to its last. The only place that answers it."""
        arrived = time.monotonic_ns()
        headers: dict[bytes, bytes] = dict(scope["headers"])
        state = scope["state"]
        catalog: Catalog = state["catalog"]
        health: Health = state["health"]
        request_id = headers.get(b"x-request-id")
        if request_id is None or _REQUEST_ID.fullmatch(request_id) is None:
            request_id = next(self._request_ids)
        extra: Headers = [(b"x-request-id", request_id)]
        served: Served | None = None
        held = 0
        try:
            if scope["method"] != "POST":
                extra.append((b"allow", b"POST"))
                raise MethodNotAllowed(f"{scope['method']} {scope['path']}: expected POST")
            served = catalog.find(route.model, route.version)
            served.admit(1)
            self._bodies.check(headers)
            body = await self._bodies.read(receive)
            held = len(body)
            decoded = await self._decode(route, served, headers, body)
            answer = await self._run(served, decoded, receive, arrived)
            payload, header_length = decoded.encode(answer)
            total = time.monotonic_ns() - arrived
            extra += _answer_headers(answer, total, header_length)
            if (wanted := wanted_encoding(headers.get(b"accept-encoding"), len(payload))) is not None:
                payload = await asyncio.to_thread(compress, payload, wanted)
                extra += [(b"content-encoding", wanted.encode()), (b"vary", b"accept-encoding")]
            extra.append((b"content-length", b"%d" % len(payload)))
            if health.closing:
                extra.append((b"connection", b"close"))
            served.finish("ok", total)
        except Exception as exc:
            if not isinstance(exc, StarlingError):
                log.exception("unexpected error on %s", scope["path"])
            if served is not None:
                served.finish(exc.code if isinstance(exc, StarlingError) else "internal", time.monotonic_ns() - arrived)
            await self._refuse(exc, scope, send, extra)
            log.debug("%s %s: %s", request_id.decode(), scope["path"], exc)
            return
        finally:
            self._bodies.release(held)
        await send({"type": "http.response.start", "status": 200, "headers": extra})
        await send({"type": "http.response.body", "body": payload})
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s: ok, %.3f ms, batch %d", request_id.decode(), scope["path"], total / 1e6, answer.batch)

    async def _decode(self, route: Route, served: Served, headers: dict[bytes, bytes], body: bytes) -> Decoded:
        """The body as arrays. What takes longer than about a millisecond is done on a thread."""
        encoding = headers.get(b"content-encoding")
        if encoding is not None and encoding.lower() != b"identity":
            body = await asyncio.to_thread(inflate, body, encoding, self._limits.body)
        if route.kind == "v2":
            length = _header_length(headers)
            task = _v2(served, body, length, self._limits.json)
            slow = (len(body) if length is None else length) > _OFF_LOOP
        elif route.kind == "v1":
            if len(body) > self._limits.json:
                raise TooLarge(f"body: expected at most {self._limits.json} bytes of JSON, got {len(body)}")
            task = _v1(served, body)
            slow = len(body) > _OFF_LOOP
        else:
            content_type = headers.get(b"content-type", b"").decode("latin-1") or None
            task = _friendly(served, body, content_type, self._limits)
            slow = len(body) > _OFF_LOOP or served.model.decode is not None
        return await asyncio.to_thread(task) if slow else task()

    async def _run(self, served: Served, decoded: Decoded, receive: Receive, arrived: int) -> Answer:
        call = decoded.call
        limit = served.info.batching.max_queue
        if call.rows > limit:
            raise BadRequest(f"{call.rows} rows in one request: the queue of model {served.info.name!r} holds {limit}")
        if isinstance(call, InferCall):
            lease = served.lease(
                call.rows, lengths=call.lengths, priority=call.priority, timeout_us=call.timeout_us,
                parameters=call.parameters, arrived_ns=arrived,
            )  # fmt: skip
        else:
            lease = served.lease(call.rows, lengths=call.lengths, arrived_ns=arrived)
        with lease:
            for index, array in enumerate(call.arrays):
                if array.nbytes > _OFF_LOOP_BINARY:
                    await asyncio.to_thread(lease.write, index, array)
                else:
                    lease.write(index, array)
            waiting = self._watch.begin(receive, lease)
            try:
                return await lease.run()
            finally:
                waiting.end()


def _closing(send: Send) -> Send:
    """`send`, with `Connection: close` on the answer: the server is going away."""

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), (b"connection", b"close")]
        await send(message)

    return sending


def _v2(served: Served, body: bytes, header_length: int | None, json_limit: int) -> Callable[[], Decoded]:
    def task() -> Decoded:
        call = decode(body, header_length, served.info, json_limit)

        def back(answer: Answer) -> tuple[bytes, int | None]:
            encoded = encode(call, answer, served.info)
            return encoded.body, encoded.header_length

        return Decoded(call, back)

    return task


def _v1(served: Served, body: bytes) -> Callable[[], Decoded]:
    def task() -> Decoded:
        call = decode_v1(served, load_json(body))
        return Decoded(call, lambda answer: (_dumps(encode_v1(served, answer.outputs)), None))

    return task


def _friendly(served: Served, body: bytes, content_type: str | None, limits: Limits) -> Callable[[], Decoded]:
    def task() -> Decoded:
        call = decode_friendly(served, content_type, body, max_pixels=limits.pixels, max_json=limits.json)
        return Decoded(call, lambda answer: (_dumps(present_friendly(served, answer.outputs, call)), None))

    return task


def _dumps(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _header_length(headers: dict[bytes, bytes]) -> int | None:
    text = headers.get(b"inference-header-content-length")
    if text is None:
        return None
    if not text.isdigit() or len(text) > 18:
        raise BadRequest(
            f"Inference-Header-Content-Length: expected a number of bytes, got {text[:40].decode('latin-1')!r}"
        )
    return int(text)


def _answer_headers(answer: Answer, total: int, header_length: int | None) -> Headers:
    timing = b"queue;dur=%.3f, compute;dur=%.3f, total;dur=%.3f" % (
        answer.queue_ns / 1e6, answer.compute_ns / 1e6, total / 1e6,
    )  # fmt: skip
    headers = [(b"server-timing", timing), (b"x-batch-size", b"%d" % answer.batch)]
    if header_length is None:
        headers.append((b"content-type", b"application/json"))
    else:
        headers.append((b"content-type", b"application/octet-stream"))
        headers.append((b"inference-header-content-length", b"%d" % header_length))
    return headers
