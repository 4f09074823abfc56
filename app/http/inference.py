"""The inference path as an ASGI application in front of FastAPI, for requests that the fast path does not take.

These are chunked and compressed bodies, large ones and such as are slow to decode, requests behind others on one
connection, refusals that close it, and whatever else is rare (see `connection/`). Every request that infers nothing is
passed on to FastAPI. The path is no route of FastAPI, because such a route costs more than all the rest of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Set
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from app.contract import CLASSES, Catalog, Lease, Served
from app.errors import ClientGone, MethodNotAllowed, NotReady, StarlingError, TooManyConnections
from app.http.access import METRICS, PROBES, Access
from app.http.access_log import LINE, AccessLog
from app.http.body import (
    ASGIApp,
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
from app.http.calls import TRACEPARENT, Calls, Route
from app.http.codecs.base import DecodedCall, RequestHeaders
from app.http.cors import Cors, CorsCalls
from app.http.direct import CLOSING, DirectCalls
from app.http.errors import error_parts
from app.http.prefix import redirecting, under, without
from app.observe.tracing.spans import CallSpan, Unrecorded
from app.observe.tracing.tracer import Tracer

_OFF_LOOP_BINARY = 4 << 20  # bytes from which the copy of an input into the slots leaves the loop: a millisecond


@dataclass(slots=True)
class _Request:
    """One request. `klass` is that of its headers until its body has been decoded; "" is the model's default."""

    route: Route
    headers: RequestHeaders
    request_id: bytes
    arrived: int
    klass: str = ""
    most_held: int = 0  # see `Calls.most_held`
    served: Served | None = None  # the version that was asked first, and then the one that took it
    rows: int = 0  # not known
    span: CallSpan | Unrecorded | None = None


@dataclass(frozen=True, slots=True)
class Outside:
    """How the server looks from outside: the prefix of an ingress, origins of CORS."""

    root_path: str = ""
    cors_origins: tuple[str, ...] = ()


_PLAIN = Outside()


class InferencePath:
    """ASGI application that answers inference requests and passes all others to `app`.

    `direct` takes plain requests from the HTTP protocol. The lifespan state must hold `catalog` (contract.Catalog) and
    `health` (contract.Health). `connections` returns how many connections the server has open; `tracer` records spans.
    `open_paths` need no key, nor do probes. `rejected` counts requests that no model does, by their error's code.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        *,
        access: Access | None = None,
        access_log: AccessLog | None = None,
        open_paths: Set[str] = frozenset(),
        connections: Callable[[], int] = lambda: 0,
        tracer: Tracer | None = None,
        outside: Outside = _PLAIN,
        rejected: Counter[str] | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._outside = outside
        self._parsing = {klass: asyncio.Lock() for klass in CLASSES}
        self._calls = Calls(
            limits,
            access=access or Access(),
            access_log=access_log,
            connections=connections,
            tracer=tracer,
            root_path=outside.root_path,
            rejected=rejected,
        )
        self._cors = Cors(outside.cors_origins) if outside.cors_origins else None
        self.direct = DirectCalls(self._calls) if self._cors is None else CorsCalls(self._calls, self._cors)

    @property
    def held(self) -> int:
        """Bytes of the bodies that are held."""
        return self._calls.bodies.held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
        elif self._calls.access_log is None:
            await self._answer(scope, receive, send)
        else:
            await self._calls.access_log.around(self._answer, scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._cors is not None:
            headers = dict(scope["headers"])
            if (asked := self._cors.preflight(scope["method"], headers)) is not None:
                await respond(closing_send(send) if scope["state"]["health"].closing else send, *asked)
                return
            send = self._cors.sending(headers, send)
        path = without(self._outside.root_path, scope["path"])
        if path not in PROBES:
            try:
                self._admit(scope, path)
            except StarlingError as exc:
                self._calls.rejected[TooManyConnections.code if isinstance(exc, NotReady) else exc.code] += 1
                await self._refuse(exc, scope, send, [], receive)
                return
        route = self._calls.route(path)
        if route is not None:
            await self._infer(route, scope, receive, send)
            return
        if scope["state"]["health"].closing:
            send = closing_send(send)
        await self._app(under(self._outside.root_path, scope, path), receive, redirecting(send))

    def _admit(self, scope: Scope, path: str) -> None:
        """Raise Unauthorized or NotReady for a request without the key, or while too many connections are open."""
        calls = self._calls
        if calls.keyed and path not in self._open_paths:
            calls.access.check(path, dict(scope["headers"]))
        if path != METRICS and calls.crowded():
            raise NotReady(f"more than {calls.limits.connections} connections are open", retry_after_s=1)

    async def _refuse(self, exc: Exception, scope: Scope, send: Send, extra: Headers, unread: Receive | None) -> None:
        """Answer with an error. `unread` gives the rest of the body; None: the body has been read."""
        status, headers, body = error_parts(exc)
        headers += extra
        if status < ClientGone.status or isinstance(exc, NotReady):
            await self._calls.turns.turn()
        # After 408, and 413 of a chunked body, the rest may never end. A body of a declared length is read to its end
        # and thrown away: a client that is still sending would see a broken connection instead of the answer.
        endless = status == 413 and b"content-length" not in dict(scope["headers"])
        closes = scope["state"]["health"].closing or endless or status in CLOSING or isinstance(exc, TooManyConnections)
        if closes:
            headers.append((b"connection", b"close"))
        if closes and unread is not None:
            await respond_and_close(send, status, headers, body, unread)
        else:
            await respond(send, status, headers, body)

    async def _infer(self, route: Route, scope: Scope, receive: Receive, send: Send) -> None:
        """One request from its first byte to its last. No other function answers it."""
        arrived = time.monotonic_ns()
        calls = self._calls
        headers: RequestHeaders = dict(scope["headers"])
        request = _Request(route, headers, calls.request_id(headers), arrived)
        if calls.tracer is not None:
            request.span = span = calls.tracer.begin(headers, arrived)
            if isinstance(span, CallSpan):
                span.asks(scope["method"], scope["path"], route.template, route.model, request.request_id)
        extra: Headers = [(b"x-request-id", request.request_id)]
        catalog: Catalog = scope["state"]["catalog"]
        unread: Receive | None = receive
        try:
            if scope["method"] != "POST":
                extra.append((b"allow", b"POST"))
                raise MethodNotAllowed(f"{scope['method']} {scope['path']}: expected POST")
            request.served = served = catalog.find(route.model, route.version)
            request.klass = calls.klass(headers)
            request.route = route.with_query(scope["query_string"])
            request.most_held = most = calls.most_held(served, request.klass)
            if not served.has_room(request.klass):
                calls.admits(served, route.codec, request.klass)
            calls.bodies.check(headers, most)
            body = await calls.bodies.read(receive, most)
            unread = None
            payload, head = await self._call(request, catalog, body, receive)
        except Exception as exc:
            calls.failed(exc, request.served, request.klass, request.request_id, arrived, scope["path"])
            if request.span is not None:
                info = None if request.served is None else request.served.info
                status = error_parts(exc)[0]
                extra.append((b"traceparent", request.span.failed(info, request.klass, exc, status)))
            await self._refuse(exc, scope, send, extra, unread)
            return
        finally:
            if (line := scope.get(LINE)) is not None:
                line.about(request.request_id, route.model, request.served, request.rows, request.klass)
        await respond(send, 200, header_list(head, scope["state"]["health"].closing), payload)

    async def _call(self, request: _Request, catalog: Catalog, body: bytes, receive: Receive) -> tuple[bytes, bytes]:
        """Run the request in `body`. Returns the answer's body and its header lines. Raises a leaf of StarlingError."""
        calls, codec, headers = self._calls, request.route.codec, request.headers
        held = len(body)
        asked = request.served
        assert asked is not None  # see `_infer`
        aside, best_effort = calls.threads.run, calls.best_effort(asked, request.klass)
        try:
            encoding = headers.get(b"content-encoding", b"")
            if encoding.strip().lower() not in (b"", b"identity"):
                body = await aside(best_effort, inflate, body, encoding, calls.limits.body)
                calls.bodies.hold(len(body), request.most_held)
                held += len(body)
            call, served, leased = await self._admitted(request, catalog, body)
            best_effort = calls.best_effort(served, request.klass)
            with leased as lease:
                for index, values in enumerate(call.arrays):
                    if values.nbytes > _OFF_LOOP_BINARY:
                        await _to_its_end(aside(best_effort, lease.write, index, values))
                    else:
                        lease.write(index, values)
                async with _cancelled_on_disconnect(receive, lease):
                    running = lease.run()
                    if isinstance(request.span, CallSpan) and calls.tracer is not None:
                        calls.tracer.submitted(request.span, lease)
                    answer = await running
        finally:
            calls.bodies.release(held)
        if calls.slow_to_encode(served, codec, call):
            payload, json_length = await aside(best_effort, calls.encode, served, codec, call, answer)
        else:
            payload, json_length = calls.encode(served, codec, call, answer)
        wanted = wanted_encoding(headers.get(b"accept-encoding"), len(payload))
        if wanted is not None:
            payload = await aside(best_effort, compress, payload, wanted)
        head = calls.succeeded(
            served, request.klass, request.request_id, request.arrived, answer, payload, json_length, wanted
        )
        if request.span is not None:
            head += TRACEPARENT % request.span.succeeded(served.info, request.klass, answer)
        return payload, head

    def _one_parser(self, served: Served, klass: str) -> AbstractAsyncContextManager[None]:
        """While it is held, no other large JSON of this class is parsed.

        A parser keeps the interpreter lock for some milliseconds: several at once gain nothing, and everything else
        would wait for each of them in turn. Code of models, which may release that lock, is not held up.
        """
        if served.model.front is not None or served.model.decode is not None:
            return nullcontext()
        return self._parsing[klass or served.info.batching.default_class]

    async def _admitted(
        self, request: _Request, catalog: Catalog, body: bytes
    ) -> tuple[DecodedCall, Served, AbstractContextManager[Lease]]:
        """Decode a call and take slots for it, at the version that serves now: it may have changed since the head."""
        calls, route, headers = self._calls, request.route, request.headers
        while True:
            served = request.served
            assert served is not None  # see `_infer`
            if calls.slow_to_decode(served, route.codec, headers, body):
                async with self._one_parser(served, request.klass):
                    best_effort = calls.best_effort(served, request.klass)
                    call = await calls.threads.run(best_effort, calls.decode, served, route.codec, headers, body)
            else:
                call = route.codec.decode(served, headers, body, calls.limits)
            request.klass = call.klass or request.klass
            request.rows = call.rows
            try:
                lease = calls.lease(served, call, route.asked, request.klass, request.arrived, headers)
            except NotReady:
                request.served = catalog.find(route.model, route.version)
                if request.served is served:
                    raise
            else:
                return call, served, lease


@asynccontextmanager
async def _cancelled_on_disconnect(receive: Receive, lease: Lease) -> AsyncIterator[None]:
    """While this is open, the call is cancelled when its client disconnects."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        lease.cancel()

    watching = asyncio.create_task(watch(), name="disconnect")
    try:
        yield
    finally:
        watching.cancel()


async def _to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for its end, even when cancelled: until then it writes into slots."""
    running = asyncio.ensure_future(work)
    try:
        await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
