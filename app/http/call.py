"""How a call begins: its head, its body, its rows in the queue, whichever way its bytes come.

A plain request costs no task and no future: `FastPath` makes a call of it, from the HTTP connection itself and without
ASGI. A task runs only what is slow: large bodies, code of models.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from app.contract import Catalog, Served
from app.errors import BadRequest, NotFound, NotReady, StarlingError, TooManyConnections
from app.http.answered_call import REALTIME, AnsweredCall
from app.http.aside import decoded_aside, opened_aside
from app.http.codecs.base import OFF_LOOP_BYTES, DecodedCall, RequestHeaders
from app.http.codecs.by_body import ByBody
from app.http.connection.connection import HttpProtocol
from app.http.inference_routes import X_CLASS, Route, find_route, parse_class, parse_query
from app.http.keys import permit
from app.http.prefix import without
from app.http.resources import Resources

_ROUTES, _LONGEST_ROUTE = 1024, 512  # targets remembered, and bytes of each: clients may send any number of others


class Call(AnsweredCall):
    """One inference request, from its head to its answer.

    Whoever has the bytes calls `admit` when the head is there, and `received` with the body.
    """

    __slots__ = ()

    # its head

    def admit(self) -> int:
        """Refuse the call if it has no room, before its body is read: a refusal under load must be cheap.

        Returns how many bytes all bodies may hold together with this one. Raises a leaf of StarlingError.
        """
        resources, route = self.resources, self.route
        served: Served | None = None
        if route.model:
            catalog: Catalog = self.connection.app_state["catalog"]
            self.served = served = catalog.find(route.model, route.version)
        if X_CLASS in self.headers:
            self.klass = parse_class(self.headers[X_CLASS])
        if route.query:
            self.options = parse_query(route.query)
        limits = resources.limits
        most_held = limits.inflight
        default = REALTIME if served is None else served.info.batching.default_class
        if (self.klass or default) != REALTIME:
            if resources.connections() > (most := limits.best_effort_connections):
                raise TooManyConnections(
                    f"more than {most} connections are open: the rest are for real-time requests", retry_after_s=1
                )
            most_held = limits.best_effort_inflight
        if served is not None and not served.has_room(self.klass):
            self._refuse_unless_body_may_help(served)
        return most_held

    def _refuse_unless_body_may_help(self, served: Served) -> None:
        """Raise QueueFull or NotReady, unless the queue of real time has room and the body may name that class."""
        klass = self.klass or served.info.batching.default_class
        if self.route.codec.names_class and klass != REALTIME and served.has_room(REALTIME):
            self.admitted = False
        else:
            served.admit(0, self.klass)

    # its body

    def received(self, body: bytes) -> None:
        if self.refused or self.ended:
            return
        served, codec = self.served, self.route.codec
        if served is None:
            self.run(self.choose_model(body))
            return
        model = served.model
        try:
            if not self.admitted and not codec.may_name_class(body):
                served.admit(0, self.klass)
            if model.front is not None or (
                (model.decode is not None or len(body) > OFF_LOOP_BYTES)
                and codec.slow_to_decode(served, self.headers, body)
            ):
                self.run(self.start_slowly(served, body))
            else:
                self.start(served, codec.decode(served, self.headers, body, self.resources.limits))
        except Exception as exc:
            self.start_failed(exc, body)

    def start(self, served: Served, decoded: DecodedCall) -> None:
        """Take slots, write the inputs into them, and submit the rows.

        Raises BadRequest for more rows than the queue holds, Forbidden or QueueFull if the key of the call may not have
        them, and what `Served.lease` raises.
        """
        self.decoded = decoded
        self.klass = decoded.klass or self.klass
        options, batching = self.options, served.info.batching
        if decoded.rows > batching.max_queue:
            raise BadRequest(
                f"{decoded.rows} rows in one request: the queue of model {served.info.name!r} holds "
                f"{batching.max_queue}; send at most {batching.max_queue} at a time, or raise max_queue "
                "(--max-queue, or in model.toml)"
            )
        priority = decoded.priority or options.priority
        key = self.resources.access.key_of(self.headers) if self.resources.keyed else None
        klass = self.klass or batching.default_class
        if key is not None:
            permit(key, klass, priority)
        self.lease = lease = served.lease(
            decoded.rows, lengths=decoded.lengths, own_lengths=decoded.own_lengths, klass=self.klass,
            priority=priority, timeout_us=decoded.timeout_us or options.timeout_us,
            total_timeout_us=decoded.total_timeout_us or options.total_timeout_us, parameters=decoded.parameters,
            arrived_ns=self.arrived,
        )  # fmt: skip
        if key is not None and self.resources.access.several:
            self.resources.shares.charge(lease, (served.info.name, served.info.version, klass), key, batching.max_queue)
        if decoded.stream is not None:
            lease.on_piece = self.on_piece
        for index, values in enumerate(decoded.arrays):
            lease.write(index, values)
        lease.submit(self)
        if self.observer is not None and not self.ended:
            self.observer.submitted(lease)

    def on_piece(self, row: int, piece: Any, tokens: int) -> None:
        """A row has made more of its answer; only a StreamingCall sends it before the end."""
        raise NotImplementedError

    def start_failed(self, exc: Exception, body: bytes) -> None:
        """Answer with the error. If the model was loaded anew since the head came, the new version takes the call."""
        if isinstance(exc, NotReady) and not self.ended:
            before, catalog = self.served, cast("Catalog", self.connection.app_state["catalog"])
            with suppress(StarlingError):
                self.served = catalog.find(self.route.model, self.route.version)
            if self.served is not before:
                self.received(body)
                return
        self.set_exception(exc)

    # what takes long

    async def choose_model(self, body: bytes) -> None:
        route, limits = self.route, self.resources.limits
        codec, catalog = route.codec, cast("Catalog", self.connection.app_state["catalog"])
        assert isinstance(codec, ByBody)  # no other route is without a model
        large = len(body) > OFF_LOOP_BYTES
        klass = self.klass or REALTIME
        opened = await opened_aside(self.resources, codec, body, klass) if large else codec.opened(body, limits)
        name = opened.choose(catalog)
        self.route = replace(route, codec=opened, model=name)
        try:
            served = catalog.find(name)
        except NotFound as error:
            error.param = "model"
            raise
        if not self.ended:  # the client may have left meanwhile
            self.served = served
            served.admit(0, self.klass)
            self.received(body)

    async def start_slowly(self, served: Served, body: bytes) -> None:
        held, self.held = self.held, 0  # a thread uses the body to its end, even if the client leaves
        klass = self.klass or served.info.batching.default_class
        try:
            decoded = await decoded_aside(self.resources, served, self.route.codec, self.headers, body, klass)
            if not self.ended:
                self.start(served, decoded)
        except Exception as exc:
            self.start_failed(exc, body)
        finally:
            self.held = held
            if self.ended:
                self.release()


class FastPath:
    """Makes calls of plain requests, which the HTTP connection offers it."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._routes: dict[bytes, Route] = {}

    def take(self, connection: HttpProtocol, url: bytes, headers: RequestHeaders, length: int) -> Call | None:
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
        call = Call(connection, resources, route, url, headers)
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
        if len(url) <= _LONGEST_ROUTE:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route
