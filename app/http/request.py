"""One inference request: what is known of it, and the coroutine that answers it, resumed by whoever has news for it.

There is no task. The coroutine (`infer`) yields what it waits for: its body, the answer of its lease, a function on a
helper thread. The request submits that with itself as the waiter, and continues the coroutine when it is told. So the
connection brings the body, the engine's driver the answer, and each of them runs the coroutine up to its next wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache, partial
from typing import Any

from app.contract import Answer, Catalog, Klass, Pending, Served, Waiter
from app.errors import INTERNAL, BodyTimeout, ClientGone, ModelFailed, QueueFull, as_starling_error
from app.http.body import RequestHeaders, client_request_id
from app.http.connection.connection import Carrier, Exchange, HttpProtocol
from app.http.inference_routes import QueryOptions, Route, find_route
from app.http.paths import strip_prefix
from app.http.resources import Resources
from app.observe.logs import fields

log = logging.getLogger("starling.http")

_ROUTES, _LONGEST_ROUTE = 1024, 512  # request targets cached, and bytes of each; longer ones are left to ASGI

#: Status, header lines with content-length, body, and whether the connection closes after it: a tuple, because to make
#: an object of a class costs 0.3 us.
Response = tuple[int, bytes, bytes, bool]
#: Answers requests; raises nothing but what must end the server.
Handler = Callable[["Request"], Coroutine[Pending, Any, Response]]


class _Body:
    """The body of a request that has not arrived: the connection collects it."""

    def submit(self, waiter: Waiter) -> None: ...

    def abandon(self) -> bool:
        return False


#: What the coroutine waits for that needs the body.
BODY = _Body()


class Request(Exchange):
    """An exchange with an inference route. Implements contract.Waiter.

    `url`: as the client sent it. `declared`: the Content-Length; None: there is none. `lines`: header lines for the
    answer, whatever it is.
    """

    # Defaults are the class's, not assigned for each request.
    method, path = "POST", ""  # ASGI has its own
    options: QueryOptions | None = None  # from the query string
    lines = b""
    served: Served | None = None
    klass = Klass.REALTIME  # until the model or the request says another one
    full = False  # the queue of the default class is full, but the body may name the other class
    rows = 0  # not known yet
    outcome: Answer | BaseException | None = None  # what the response says
    held = 0  # bytes of the body that count as held
    most_held = 0  # bytes that all bodies may hold together with this one
    _pending: Pending | None = None

    def __init__(
        self,
        connection: Carrier,
        resources: Resources,
        route: Route,
        url: bytes,
        headers: RequestHeaders,
        declared: int | None = None,
        body: bytes | None = None,
    ) -> None:
        self.connection = connection
        if body is not None:
            self.body_complete = True
        self.arrived = time.monotonic_ns()
        self.resources = resources
        self.route = route
        self.url = url
        self.headers = headers
        self.declared = declared
        self.body = body
        self.catalog: Catalog = connection.app_state["catalog"]
        self.request_id: bytes = (client_request_id(headers) if b"x-request-id" in headers else None) or (
            resources.id_format % next(resources.ids)
        )
        self._coroutine: Coroutine[Pending, Any, Response] | None = resources.handler(self)

    # for whoever has what it waits for

    def set_result(self, value: Any = None, error: BaseException | None = None) -> None:
        """Begin, or continue with what was waited for, or with an error.

        Runs the coroutine up to its next wait, or to its end, and then sends its response.
        """
        running = self._coroutine
        if running is None:  # its client has left, and a thread has used its body to the end
            self.resources.bodies.held -= self.held
            self.held = 0
            return
        try:
            self._pending = pending = running.send(value) if error is None else running.throw(error)
        except StopIteration as end:
            # The connection keeps this object until its next request. It must keep neither a model nor a body alive.
            self._coroutine = self._pending = self.served = self.outcome = self.body = None
            del self.route  # whose codec may be the request's own, with the parsed body
            self.resources.bodies.held -= self.held
            self.held = 0
            status, head, body, self.closes = end.value
            self.connection.send_answer(self, status, head, body)
            return
        try:
            pending.submit(self)
        except Exception as failure:  # there is no thread, or the device has no memory for the inputs
            if self._pending is not pending:  # it did begin, and what came of it led to this
                raise
            self.set_exception(failure)

    begin = set_result

    def set_exception(self, error: BaseException) -> None:
        """Continue with an error."""
        self.set_result(None, error)

    def count(self, size: int) -> None:
        """Count so many more bytes of the body as held. Raises TooLarge or QueueFull."""
        self.resources.bodies.hold(size, self.most_held, self.held)
        self.held += size

    def hold(self, size: int) -> None:
        try:
            self.count(size)
        except QueueFull as error:
            self.set_exception(error)

    def received(self, body: bytes) -> None:
        if not self.drops_body:
            self.set_result(body)

    def on_body_timeout(self) -> None:
        limit_s = self.resources.limits.body_timeout_s
        self.set_exception(BodyTimeout(f"the body did not arrive within {limit_s:g} s"))

    def on_disconnect(self) -> None:
        if (pending := self._pending) is None or self.drops_body:
            return
        held, self.held = self.held, 0
        self.set_exception(ClientGone("the client went away before its answer"))
        if pending.abandon():  # a thread uses the body to its end, and then calls `set_result`
            self.held = held
        else:
            self.resources.bodies.held -= held

    def count_failure(self, exc: BaseException) -> None:
        """Count a call that is answered with an error, and log the error if it is the server's or the model's."""
        error, served, told = as_starling_error(exc), self.served, self.request_id.decode()
        if error is INTERNAL:
            path = self.url.decode("latin-1")
            log.error("request %s: unexpected error on %s", told, path, exc_info=exc, **fields(request_id=told))
        self.resources.errors.add("" if served is None else served.info.name, error.code, error.message)
        if served is None:
            self.resources.rejected[error.code] += 1
        else:
            served.finish(error.code, time.monotonic_ns() - self.arrived, self.klass)
            cause = error.cause
            if cause is None and isinstance(error, ModelFailed):
                cause = error  # the model raised nothing, but returned something wrong
            if cause is not None:
                self.resources.causes.log(cause, f"{served.info.name} version {served.info.version}", told)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s: %s", told, self.url.decode("latin-1"), exc)


class FastPath:
    """Makes requests of plain POSTs. `take` is what the HTTP connection calls for each."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._find = lru_cache(_ROUTES)(partial(_find, resources.root_path))

    def take(
        self, connection: HttpProtocol, url: bytes, headers: RequestHeaders, length: int, body: bytes | None
    ) -> Request | None:
        """The request, begun, of a plain POST with a body of `length` bytes, and the body if it is there.

        None leaves the request to ASGI: other paths, streams, and refusals that are not about a model.
        """
        resources = self._resources
        route = self._find(url) if len(url) <= _LONGEST_ROUTE else None
        if route is None or len(connection.connections) > resources.limits.connections:
            return None
        if resources.keyed and resources.auth.key_of(headers) is None:
            return None
        if connection.app_state["health"].closing:
            return None
        return Request(connection, resources, route, url, headers, length, body)


def _find(prefix: str, url: bytes) -> Route | None:
    """The route of a request target that an ingress may have left this prefix on; None leaves it to ASGI."""
    if b"%" in url or b"#" in url:  # rare: ASGI decodes the path, and drops a fragment
        return None
    path, _, query = url.partition(b"?")
    route = find_route(strip_prefix(prefix, path.decode("latin-1")), query)
    return None if route is None or route.codec.may_stream else route
