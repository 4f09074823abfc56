"""The fast path: plain inference requests are taken from the HTTP connection itself, without ASGI."""

from __future__ import annotations

from app.errors import NotReady, TooManyConnections
from app.http.codecs.base import RequestHeaders
from app.http.connection.connection import HttpProtocol
from app.http.inference_routes import Route, find_route
from app.http.prefix import without
from app.http.resources import Resources
from app.http.tasked_call import TaskedCall

ROUTES, LONGEST_ROUTE = 1024, 512  # targets remembered, and bytes of each: clients may send any number of others


class FastPath:
    """Makes a call of each request that it takes."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._routes: dict[bytes, Route] = {}

    def take(self, connection: HttpProtocol, url: bytes, headers: RequestHeaders, length: int) -> TaskedCall | None:
        """The call that a plain POST begins, `length` being its Content-Length. Its body is to be passed to it.

        None for a request that is left to ASGI: other paths, streams, and refusals that close the connection.
        """
        resources = self._resources
        route = self._routes.get(url) or self._find(url)
        if route is None or len(connection.connections) > resources.limits.connections:
            return None
        if resources.keyed and resources.access.key_of(headers) is None:
            return None
        if connection.app_state["health"].closing:
            return None
        call = TaskedCall(connection, resources, route, url, headers)
        try:
            bodies, most_held = resources.bodies, call.admit()
            if length > bodies.limits.body or bodies.held + length > most_held:
                bodies.check_size(length, most_held)
            bodies.held += length
            call.held = length
        except (NotReady, TooManyConnections):
            return None
        except Exception as exc:
            call.set_exception(exc)
        return call

    def _find(self, url: bytes) -> Route | None:
        if b"%" in url:  # rare: left to ASGI, which decodes the path
            return None
        path, _, query = url.partition(b"?")
        route = find_route(without(self._resources.root_path, path.decode("latin-1")), query)
        if route is None or route.codec.may_stream:
            return None
        if len(url) <= LONGEST_ROUTE:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route
