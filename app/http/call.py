"""One inference request, from its head to its answer, whichever way its bytes come.

A call is its own waiter: the engine calls `set_result` on the event loop when the rows have ended, which encodes the
outputs and gives the answer to the connection. A plain request costs no task and no future. A task runs only what is
slow: large bodies, code of models, compression of large answers.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

from app.contract import CLASSES, Answer, Catalog, Lease, Served
from app.errors import (
    BadRequest,
    BodyTimeout,
    ClientGone,
    MethodNotAllowed,
    NotReady,
    StarlingError,
    TooLarge,
    TooManyConnections,
)
from app.http.access_log import CallObserver
from app.http.answers import (
    BINARY,
    COMPRESS_FROM,
    COMPRESSED,
    HEAD,
    JSON,
    QUICK_TO_COMPRESS,
    compress,
    wanted_encoding,
)
from app.http.body import given_id
from app.http.codecs.base import (
    OFF_LOOP_BYTES,
    DecodedCall,
    RequestHeaders,
    encode,
    slow_to_encode,
)
from app.http.connection.connection import Carrier, Exchange
from app.http.errors import error_parts
from app.http.inference_routes import NO_OPTIONS, X_CLASS, Route, parse_class, parse_query
from app.http.keys import permit
from app.http.resources import Resources, log

REALTIME = CLASSES[0]
#: Statuses after which a connection closes: the rest of a body that came too late, and a server that may be going.
_CLOSING = frozenset({408, 503})
OFF_LOOP_WRITE = 4 << 20  # bytes from which the copy of an input into the slots leaves the loop: a millisecond


class Call(Exchange):
    """Implements contract.Waiter. Answers exactly once, through its connection.

    Whoever has the bytes calls `admit` when the head is there, and `received` with the body. `url` is as the client
    sent it, `path` that of the URL where a proxy has changed it.
    """

    __slots__ = (
        "admitted", "arrived", "decoded", "ended", "headers", "held", "klass", "lease", "observer", "options",
        "request_id", "resources", "route", "served", "url",
    )  # fmt: skip

    def __init__(
        self,
        connection: Carrier,
        resources: Resources,
        route: Route,
        url: bytes,
        headers: RequestHeaders,
        method: str = "POST",
        path: str | None = None,
    ) -> None:
        # Exchange's own __init__, written out: a call more costs a tenth of a microsecond.
        self.connection = connection
        self.health = connection.app_state["health"]
        self.keep_alive = True
        self.disconnected = self.response_complete = self.whole = self.refused = self.final = False
        self.arrived = time.monotonic_ns()
        self.resources = resources
        self.route = route
        self.url = url
        self.headers = headers
        self.request_id = (given_id(headers) if b"x-request-id" in headers else None) or (
            resources.id_format % next(resources.ids)
        )
        self.options = NO_OPTIONS  # of its query
        self.served: Served | None = None
        self.decoded: DecodedCall | None = None
        self.lease: Lease | None = None
        self.klass = ""  # the model's default
        self.admitted = True  # False: the queue is full, unless the body names the other class
        self.held = 0  # bytes of the body that count as held
        self.ended = False  # the answer has been given
        self.observer: CallObserver | None = None
        if resources.observed:
            self.observer = CallObserver(
                resources.access_log, resources.tracer, route, headers, method=method, url=url, path=path,
                request_id=self.request_id, arrived=self.arrived, client=connection.client,
            )  # fmt: skip

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
                and (codec.slow_to_decode(served, self.headers, body) or len(body) > OFF_LOOP_WRITE)
            ):
                self.run(self.start_slowly(served, body))
                return
            self.decoded = decoded = codec.decode(served, self.headers, body, self.resources.limits)
            self.lease = lease = self.take_slots(served, decoded)
            for index, values in enumerate(decoded.arrays):
                lease.write(index, values)
            lease.submit(self)
            if self.observer is not None and not self.ended:
                self.observer.submitted(lease)
        except Exception as exc:
            self.start_failed(exc, body)

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

    def take_slots(self, served: Served, decoded: DecodedCall) -> Lease:
        """Raises Forbidden or QueueFull if the key of the call may not have them, and what `Served.lease` raises."""
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
        lease = served.lease(
            decoded.rows, lengths=decoded.lengths, own_lengths=decoded.own_lengths, klass=self.klass,
            priority=priority, timeout_us=decoded.timeout_us or options.timeout_us,
            total_timeout_us=decoded.total_timeout_us or options.total_timeout_us, parameters=decoded.parameters,
            arrived_ns=self.arrived,
        )  # fmt: skip
        if key is not None and self.resources.access.several:
            self.resources.shares.charge(lease, (served.info.name, served.info.version, klass), key, batching.max_queue)
        return lease

    # its answer

    def done(self) -> bool:
        return self.ended

    def set_result(self, answer: Answer) -> None:
        """The rows have ended: encode the outputs and answer. Raises nothing."""
        self.release()
        served, decoded, codec = self.served, self.decoded, self.route.codec
        assert served is not None  # see `admit`
        assert decoded is not None  # see `received`
        try:
            model = served.model
            if model.front is None and model.present is None:
                body, json_length = codec.encode(served, decoded, answer)
            elif slow_to_encode(served, codec, decoded):
                self.run(self.encode_slowly(served, decoded, answer))
                return
            else:
                body, json_length = encode(served, codec, decoded, answer)
            if len(body) < COMPRESS_FROM:
                self.succeed(served, answer, body, json_length, None)
            else:
                self.compress_and_succeed(served, answer, body, json_length)
        except Exception as exc:
            self.set_exception(exc)

    def compress_and_succeed(self, served: Served, answer: Answer, body: bytes, json_length: int | None) -> None:
        wanted = wanted_encoding(self.headers.get(b"accept-encoding"), len(body))
        if wanted is None:
            self.succeed(served, answer, body, json_length, None)
        elif len(body) <= QUICK_TO_COMPRESS:
            self.succeed(served, answer, compress(body, wanted), json_length, wanted)
        else:
            self.run(self.compress_slowly(served, answer, body, json_length, wanted))

    def succeed(
        self, served: Served, answer: Answer, body: bytes, json_length: int | None, encoding: str | None
    ) -> None:
        if self.ended:  # the client has left while a thread was at work
            return
        decoded = self.decoded
        assert decoded is not None  # see `received`
        total = time.monotonic_ns() - self.arrived
        kind = JSON if json_length is None else BINARY % json_length
        if encoding is not None:
            kind += COMPRESSED % encoding.encode()
        head = HEAD % (
            self.request_id, answer.queue_ns / 1e6, sum(answer.times) / 1e6, total / 1e6, answer.batch, kind, len(body),
        )  # fmt: skip
        if (observer := self.observer) is not None:
            self.observer = None  # asked once: if it raises, the error is answered without it
            head += observer.succeeded(served, self.klass, decoded.rows, answer)
        if self.resources.cors is not None:
            head += self.resources.cors.lines(self.headers.get(b"origin"))
        self.ended = True  # last: what raised before is still answered, as an error
        # The connection keeps this object until its next request, and would keep a model that is gone by then.
        self.served = self.decoded = None
        served.finish("ok", total, self.klass)
        if log.isEnabledFor(logging.DEBUG):
            name = served.info.name
            log.debug("%s %s: ok, %.3f ms, batch %d", self.request_id.decode(), name, total / 1e6, answer.batch)
        self.connection.send_answer(self, 200, head, body)

    def set_exception(self, exc: Exception) -> None:
        """Answer with an error; nothing is written where the client has gone."""
        if self.ended:
            return
        self.ended = True
        self.release()
        self.resources.count_failure(exc, self.served, self.klass, self.request_id, self.arrived, self.url)
        status, lines, body = error_parts(exc, self.route.openai)
        # The rest of a chunked body may never end. One of a declared length is read to its end and dropped, because a
        # client that still sends would see a broken connection in place of the answer.
        endless = status == TooLarge.status and b"content-length" not in self.headers
        self.final = endless or status in _CLOSING or isinstance(exc, TooManyConnections)
        lines.append((b"x-request-id", self.request_id))
        if status == MethodNotAllowed.status:
            lines.append((b"allow", b"POST"))
        head = b"".join([b"%s: %s\r\n" % line for line in lines])
        if self.observer is not None:
            rows = 0 if self.decoded is None else self.decoded.rows
            try:
                head += self.observer.failed(self.served, self.klass, rows, exc, status)
            except Exception:
                log.exception("an error is answered that the access log or the tracer does not have")
        if self.resources.cors is not None:
            head += self.resources.cors.lines(self.headers.get(b"origin"))
        self.served = self.decoded = None  # see `succeed`
        refusals = self.resources.refusals
        if (status < ClientGone.status or status == NotReady.status) and refusals.needed():
            self.refused = True
            refusals.wait(self.connection.loop, partial(self.connection.send_answer, self, status, head, body))
        else:
            self.connection.send_answer(self, status, head, body)

    def late(self) -> None:
        limit_s = self.resources.limits.body_timeout_s
        self.set_exception(BodyTimeout(f"the body did not arrive within {limit_s:g} s"))

    def left(self) -> None:
        self.set_exception(ClientGone("the client went away before its answer"))

    # resources

    def release(self) -> None:
        """Nothing of the request is needed any more but its answer."""
        if self.held:
            self.resources.bodies.held -= self.held
            self.held = 0
        lease = self.lease
        if lease is not None:
            self.lease = None  # the two refer to one another: cut, so that the cycle collector has no work
            lease.close()

    @property
    def best_effort(self) -> bool:
        """Whether it leaves the last part of each resource to real time; False where no model was found."""
        served = self.served
        return served is not None and (self.klass or served.info.batching.default_class) != REALTIME

    # what takes long: see TaskedCall

    @abstractmethod
    def run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run this in a task, which the server waits for when it stops."""

    @abstractmethod
    async def choose_model(self, body: bytes) -> None:
        """Find the model that the body names; from there the call is like one whose path names it."""

    @abstractmethod
    async def start_slowly(self, served: Served, body: bytes) -> None:
        """Decode, write and submit with a large body, or one that a model's own code reads."""

    @abstractmethod
    async def encode_slowly(self, served: Served, decoded: DecodedCall, answer: Answer) -> None: ...

    @abstractmethod
    async def compress_slowly(
        self, served: Served, answer: Answer, body: bytes, json_length: int | None, encoding: str
    ) -> None: ...
