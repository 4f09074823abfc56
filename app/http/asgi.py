"""The ASGI application of the server, in front of FastAPI.

It answers the inference requests that the fast path does not take: chunked, compressed and large bodies, pipelined
requests, streams, and refusals that close the connection. All other requests are passed on to FastAPI. Inference is not
a FastAPI route, because such a route costs more than all the rest of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Set
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, cast

from fastapi import FastAPI

from app.errors import MethodNotAllowed, NotReady, StarlingError, TooManyConnections
from app.http.absent_routes import has_openai_form
from app.http.answers import editing_send, header_list, respond, respond_and_close
from app.http.auth import METRICS, PROBES
from app.http.body import Headers, Receive, Scope, Send, inflate
from app.http.call import FastPath
from app.http.errors import error_parts
from app.http.inference_routes import Route, find_route
from app.http.prefix import path_redirect, scope_under_prefix, strip_prefix
from app.http.resources import Resources
from app.http.streaming import AsgiCarrier, StreamingCall


class HttpApp:
    """ASGI application that answers inference requests and passes all others to `app`.

    `fast_path` takes plain requests from the HTTP connection. The lifespan's state must hold `catalog`
    (contract.Catalog) and `health` (Lifecycle). `open_paths` and probes need no key.
    """

    def __init__(self, app: FastAPI, resources: Resources, open_paths: Set[str] = frozenset()) -> None:
        self._app = app
        self.resources = resources
        self._open_paths = open_paths
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
        preflight = None if resources.cors is None else resources.cors.preflight(scope["method"], headers)
        error = None if preflight is not None or path in PROBES else self._refused(path, headers)
        route = None if preflight is not None or error is not None else find_route(path, scope["query_string"])
        if route is not None:
            await self._infer(route, headers, scope, receive, send)
            return
        answer = partial(self._answer, path, preflight, error)
        if resources.access_log is None:
            await answer(scope, receive, send)
        else:
            await resources.access_log.log_request(answer, scope, receive, send)

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
        self,
        path: str,
        preflight: tuple[int, Headers, bytes] | None,
        error: StarlingError | None,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        """Answer a request that is not an inference call: by FastAPI, unless it is a preflight or refused."""
        resources = self.resources
        closing = scope["state"]["health"].closing or isinstance(error, NotReady)
        added: Headers = [(b"connection", b"close")] if closing else []
        if preflight is not None:
            status, headers, body = preflight
            await respond(send, status, [*headers, *added], body)
            return
        if resources.cors is not None:
            added += header_list(resources.cors.lines(dict(scope["headers"]).get(b"origin")))
        if error is None:
            send = editing_send(send, lambda status, headers: [*path_redirect(status, headers), *added])
            await self._app(scope_under_prefix(resources.root_path, scope, path), receive, send)
            return
        status, headers, body = error_parts(error, has_openai_form(path))
        await resources.refusals.turn()
        if closing:
            await respond_and_close(send, status, [*headers, *added], body, receive)
        else:
            await respond(send, status, [*headers, *added], body)

    async def _infer(
        self, route: Route, headers: dict[bytes, bytes], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Answer one inference request: pass ASGI messages to a call, and send its answer."""
        carrier = AsgiCarrier(scope)
        url = scope.get("raw_path") or scope["path"].encode()
        call = StreamingCall(carrier, self.resources, route, url, headers, scope["method"], scope["path"])
        watching = None
        try:
            await self._read(call, scope, receive)
            if call.body_complete and not carrier.answer.done():
                watching = asyncio.create_task(_watch(call, receive), name="disconnect")
            status, head, body = await carrier.answer
            closes = call.closes or call.health.closing
            lines = header_list(head, closes)
            if carrier.stream is not None:
                await send({"type": "http.response.start", "status": status, "headers": lines})
                await carrier.stream.send(send, call.set_exception)
                return
        finally:
            if watching is not None:
                watching.cancel()
            call.on_disconnect()  # does nothing if it is answered
        if closes and not call.body_complete:
            await respond_and_close(send, status, lines, body, receive)
        else:
            await respond(send, status, lines, body)

    async def _read(self, call: StreamingCall, scope: Scope, receive: Receive) -> None:
        """Pass the body to the call."""
        bodies, threads, limits = self.resources.bodies, self.resources.threads, self.resources.limits
        try:
            if scope["method"] != "POST":
                raise MethodNotAllowed(f"{scope['method']} {scope['path']}: expected POST")
            most_held = call.admit()
            bodies.check(call.headers, most_held)
            body = await bodies.read(receive, most_held)
            call.body_complete, call.held = True, len(body)
            encoding = call.headers.get(b"content-encoding", b"")
            if encoding.strip().lower() not in (b"", b"identity"):
                body = await threads.run(call.best_effort, inflate, body, encoding, limits.body)
                bodies.hold(len(body), most_held)
                call.held += len(body)
        except Exception as error:
            call.set_exception(error)
        else:
            call.received(body)


async def _watch(call: StreamingCall, receive: Receive) -> None:
    """Call `on_disconnect` when the client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    call.on_disconnect()
