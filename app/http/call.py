"""One inference call, from its head to the submission of its rows. `AnsweredCall`, its base class, answers it.

The HTTP connection offers plain requests to `FastPath`, which makes calls of them without ASGI, tasks or futures. A
task is only made for slow work: large bodies, and models' own code.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, cast

from app.contract import Array, Catalog, Front, Served, Translated
from app.errors import BadRequest, BadText, NotFound, NotReady, StarlingError, TooManyConnections
from app.http.answered_call import REALTIME, AnsweredCall
from app.http.body import RequestHeaders
from app.http.codecs.base import OFF_LOOP_BYTES, DecodedCall
from app.http.codecs.text_codec import TextCodec
from app.http.codecs.truncation import take_cut
from app.http.connection.connection import HttpProtocol
from app.http.inference_routes import X_CLASS, Route, find_route, parse_class, parse_query
from app.http.keys import check_permitted
from app.http.prefix import strip_prefix
from app.http.resources import Resources

_ROUTES, _LONGEST_ROUTE = 1024, 512  # request targets cached, and bytes of each: clients may send any number


class Call(AnsweredCall):
    """The fast path or the ASGI path calls `admit` when the head has arrived, and `received` with the whole body."""

    __slots__ = ()

    # its head

    def admit(self) -> int:
        """Admission control before the body is read, because a refusal under load must be cheap.

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
        """Raise QueueFull or NotReady, unless the real-time queue has room and the body may name that class."""
        klass = self.klass or served.info.batching.default_class
        if self.route.codec.names_class and klass != REALTIME and served.has_room(REALTIME):
            self.admitted = False
        else:
            served.admit(0, self.klass)

    # its body

    def received(self, body: bytes) -> None:
        if self.refusal_delayed or self.ended:
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

        Raises BadRequest if the call has more rows than the queue holds, Forbidden or QueueFull if its key does not
        allow them, and what `Served.lease` raises.
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
        key = self.resources.auth.key_of(self.headers) if self.resources.keyed else None
        klass = self.klass or batching.default_class
        if key is not None:
            check_permitted(key, klass, priority)
        self.lease = lease = served.lease(
            decoded.rows, lengths=decoded.lengths, own_lengths=decoded.own_lengths, klass=self.klass,
            priority=priority, timeout_us=decoded.timeout_us or options.timeout_us,
            total_timeout_us=decoded.total_timeout_us or options.total_timeout_us, parameters=decoded.parameters,
            arrived_ns=self.arrived,
        )  # fmt: skip
        if key is not None and self.resources.auth.several:
            self.resources.shares.charge(lease, (served.info.name, served.info.version, klass), key, batching.max_queue)
        if decoded.stream is not None:
            lease.on_piece = self.on_piece
        for index, values in enumerate(decoded.arrays):
            lease.write(index, values)
        lease.submit(self)

    def on_piece(self, row: int, piece: Any, tokens: int) -> None:
        """A row has produced a piece of its answer. StreamingCall sends it."""
        raise NotImplementedError

    def start_failed(self, exc: Exception, body: bytes) -> None:
        """Answer with the error. If the model was reloaded since `admit`, start again with the new version instead."""
        if isinstance(exc, NotReady) and not self.ended:
            before, catalog = self.served, cast("Catalog", self.connection.app_state["catalog"])
            with suppress(StarlingError):
                self.served = catalog.find(self.route.model, self.route.version)
            if self.served is not before:
                self.received(body)
                return
        self.set_exception(exc)

    # slow work: tasks, and the helper threads

    async def choose_model(self, body: bytes) -> None:
        """Find the model that the body names, then go on as `received`."""
        codec, catalog = self.route.codec, cast("Catalog", self.connection.app_state["catalog"])
        assert isinstance(codec, TextCodec)  # all other routes name the model in the path
        limits = self.resources.limits
        if len(body) > OFF_LOOP_BYTES:
            best_effort = (self.klass or REALTIME) != REALTIME
            opened = await self.resources.parser.run(best_effort, codec.with_body, body, limits)
        else:
            opened = codec.with_body(body, limits)
        name = opened.choose(catalog)
        self.route = replace(self.route, codec=opened, model=name)
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
        """Decode on a helper thread, have the model's front read the inputs if it has one, then start."""
        held, self.held = self.held, 0  # a thread uses the body to its end, even if the client leaves
        codec, klass = self.route.codec, self.klass or served.info.batching.default_class
        try:
            decoded = await self._decode_slowly(served, body, klass)
            if (front := codec.front(served)) is not None:
                decoded.take_translated(await self._read(front, decoded, klass, len(body)))
                if decoded.parameters and front.with_parameters is not None:
                    decoded.note = front.with_parameters(decoded.note, decoded.parameters)
            if not self.ended:
                self.start(served, decoded)
        except Exception as exc:
            self.start_failed(exc, body)
        finally:
            self.held = held
            if self.ended:
                self.release()

    async def _read(self, front: Front, decoded: DecodedCall, klass: str, size: int) -> Translated:
        """What the model's front makes of the inputs, from a body of `size` bytes."""
        resources, best_effort = self.resources, klass != REALTIME
        sent = cast("list[Array]", decoded.arrays)  # fronts read bytes
        cut = take_cut(decoded, front)
        try:
            if cut is not None and front.read_cut is not None:
                return await resources.threads.run(best_effort, front.read_cut, sent, cut)
            return await resources.front_reader.read(front, best_effort, sent, size)
        except BadText as error:
            raise self.route.codec.bad_text_error(error) from None

    async def _decode_slowly(self, served: Served, body: bytes, klass: str) -> DecodedCall:
        resources, codec, headers = self.resources, self.route.codec, self.headers
        if not codec.slow_to_decode(served, headers, body):
            return codec.decode(served, headers, body, resources.limits)
        threads = resources.parser if served.model.decode is None else resources.threads
        return await threads.run(klass != REALTIME, codec.decode, served, headers, body, resources.limits)


class FastPath:
    """Makes calls of plain requests. `take` is what the HTTP connection calls for each POST."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._routes: dict[bytes, Route] = {}

    def take(self, connection: HttpProtocol, url: bytes, headers: RequestHeaders, length: int) -> Call | None:
        """The call of a plain POST; `length` is its Content-Length. The connection passes the body to it.

        None leaves the request to ASGI: other paths, streams, and refusals that close the connection.
        """
        resources = self._resources
        route = self._routes.get(url) or self._find(url)
        if route is None or len(connection.connections) > resources.limits.connections:
            return None
        if resources.keyed and resources.auth.key_of(headers) is None:
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
        if b"%" in url:  # rare: ASGI decodes the path
            return None
        path, _, query = url.partition(b"?")
        route = find_route(strip_prefix(self._resources.root_path, path.decode("latin-1")), query)
        if route is None or route.codec.may_stream:
            return None
        if len(url) <= _LONGEST_ROUTE:
            if len(self._routes) >= _ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route
