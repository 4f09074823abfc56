"""The ASGI application of the server, in front of FastAPI.

It answers the inference requests that the fast path does not take: chunked, compressed and large bodies, pipelined
requests, streams, and refusals that close the connection. All other requests are passed on to FastAPI. Inference is not
a FastAPI route, because such a route costs more than all the rest of a call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Set
from contextlib import AbstractAsyncContextManager
from typing import Any, cast

from fastapi import FastAPI
from starlette.types import Message, Receive, Scope, Send

from app.contract import awaited
from app.errors import BadFrames, ClientGone, NotReady, StarlingError, TooManyConnections
from app.http.answers import CLOSE, header_list, respond
from app.http.auth import METRICS, PROBES
from app.http.body import RequestHeaders, client_request_id, read_body
from app.http.codecs.base import Stream, event
from app.http.connection.uvicorn_fixes import BAD_FRAMES
from app.http.errors import error_parts
from app.http.infer import infer
from app.http.inference_routes import Route, find_route
from app.http.layers import layered, write_line
from app.http.paths import has_openai_form, path_redirect, scope_under_prefix, strip_prefix
from app.http.request import FastPath, Request
from app.http.resources import Resources
from app.http.streaming import AsgiCarrier, stream_head

#: What answers a request before its route does: a preflight's status, header lines and body, or an error.
Early = tuple[int, bytes, bytes] | StarlingError | None


class HttpApp:
    """ASGI application that answers inference requests and passes all others to `app`.

    `fast_path` takes plain requests from the HTTP connection. The lifespan's state must hold `catalog`
    (contract.Catalog) and `health` (Lifecycle). `open_paths` and probes need no key.
    """

    def __init__(self, app: FastAPI, resources: Resources, open_paths: Set[str] = frozenset()) -> None:
        self._app = app
        self.resources = resources
        self._open_paths = open_paths
        resources.handler = layered(infer, resources)
        self.fast_path = FastPath(resources)

    def running(self) -> AbstractAsyncContextManager[Mapping[str, Any]]:
        """Run the lifespan, for callers without an ASGI server. Yields its state, which each request's scope needs.

        Raises what the startup raises.
        """
        return cast(AbstractAsyncContextManager[Mapping[str, Any]], self._app.router.lifespan_context(self._app))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        resources = self.resources
        headers = dict(scope["headers"])
        path = strip_prefix(resources.root_path, scope["path"])
        early: Early = None if resources.cors is None else resources.cors.preflight(scope["method"], headers)
        if early is None and path not in PROBES:
            early = self._refused(path, headers)
        if early is None and (route := find_route(path, scope["query_string"])) is not None:
            await self._infer(route, headers, scope, receive, send)
            return
        await self._answer(path, early, headers, scope, receive, send)

    def _refused(self, path: str, headers: dict[bytes, bytes]) -> StarlingError | None:
        """The error for a request without a valid key, or above the limit of connections; None: it is not refused."""
        resources = self.resources
        try:
            if resources.keyed and path not in self._open_paths:
                resources.auth.check(path, headers)
        except StarlingError as error:
            resources.rejected[error.code] += 1
            return error
        if path != METRICS and resources.connections() > resources.limits.connections:
            resources.rejected[TooManyConnections.code] += 1
            return NotReady(f"more than {resources.limits.connections} connections are open", retry_after_s=1)
        return None

    async def _answer(
        self, path: str, early: Early, headers: RequestHeaders, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer a request that is not an inference call: by FastAPI, unless it is a preflight or refused. Log it.

        A client that offers to wait for 100 Continue loses its connection: see `_infer`.
        """
        resources, arrived, status = self.resources, time.monotonic_ns(), ClientGone.status
        request_id = client_request_id(headers) or resources.id_format % next(resources.ids)
        added = b"x-request-id: %s\r\n" % request_id
        if scope["state"]["health"].closing or isinstance(early, NotReady) or b"expect" in headers:
            added += CLOSE
        if resources.cors is not None:
            added += resources.cors.lines(headers.get(b"origin"))

        async def send_with_ours(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = path_redirect(status, list(message.get("headers", ()))) + header_list(added)
            await send(message)

        try:
            if early is None:
                await self._app(scope_under_prefix(resources.root_path, scope, path), receive, send_with_ours)
                return
            if isinstance(early, StarlingError) and resources.refusals.needed():
                await awaited(resources.refusals)
            early = early if isinstance(early, tuple) else error_parts(early, has_openai_form(path))
            await respond(send_with_ours, *early)
        finally:
            if resources.access_log and path not in PROBES:
                url = scope.get("raw_path") or scope["path"].encode()
                write_line(
                    scope["method"], url, scope.get(BAD_FRAMES, status), arrived, scope.get("client"), request_id
                )

    async def _infer(
        self, route: Route, headers: dict[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer one inference request: bring it its body, and send what it answers."""
        carrier = AsgiCarrier(scope)
        url = scope.get("raw_path") or scope["path"].encode()
        length = headers.get(b"content-length")  # the parser takes no other than a number
        request = Request(carrier, self.resources, route, url, headers, None if length is None else int(length))
        request.method, request.path = scope["method"], scope["path"]
        watching, begun, health = None, False, scope["state"]["health"]
        try:
            request.begin()
            await self._bring_body(request, scope, receive)
            if request.body_complete and not request.response_complete:
                watching = asyncio.create_task(_watch(request, receive), name="disconnect")
            while isinstance(part := await carrier.outgoing.get(), Stream):
                if not part.waits:  # the answer, which is next, has it all
                    continue
                try:
                    data = part.waiting()
                except Exception as error:
                    request.set_exception(error)
                    continue
                if not begun:
                    begun = True
                    head = stream_head(request) + (CLOSE if health.closing else b"")
                    await send({"type": "http.response.start", "status": 200, "headers": header_list(head)})
                await send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            if watching is not None:
                watching.cancel()
            request.on_disconnect()  # does nothing if it is answered
        status, head, body = part
        # A client that was not told to continue may send its next request in place of the body.
        closes = request.closes or health.closing or (b"expect" in headers and not request.body_complete)
        if begun:
            await send({"type": "http.response.body", "body": body if status == 200 else event(body)})
        else:
            await respond(send, status, head + CLOSE if closes else head, body)

    async def _bring_body(self, request: Request, scope: Scope, receive: Receive) -> None:
        """Give the request its body, unless it is answered without."""
        if request.response_complete or request.drops_body:
            return
        try:
            body = await read_body(receive, self.resources.limits.body_timeout_s, request.count)
        except Exception as error:
            # for the log and the metrics: its client has its answer
            request.set_exception(BadFrames(scope[BAD_FRAMES]) if BAD_FRAMES in scope else error)
        else:
            request.body_complete = True
            request.received(body)


async def _watch(request: Request, receive: Receive) -> None:
    """Call `on_disconnect` when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    request.on_disconnect()
