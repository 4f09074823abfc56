"""Inference requests on the fast path: taken from the HTTP protocol, without a task.

A call here is its own waiter: when its batch ends, the engine calls `set_result` on the event loop, which encodes the
outputs and writes the answer. Only what would keep the loop from other work (a model's `present` on many rows,
compression of a large answer) is done by a task of its own.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, cast

from app.contract import CLASSES, Answer, Catalog, Health, Lease, Served
from app.errors import BadRequest, BodyTimeout, ClientGone, NotReady, StarlingError
from app.http.access_log import Line
from app.http.body import COMPRESS_FROM, QUICK_TO_COMPRESS, compress, wanted_encoding
from app.http.calls import LONGEST_ROUTE, ROUTES, TRACEPARENT, X_CLASS, Calls, Route
from app.http.codecs.base import DecodedCall
from app.http.connection.exchange import Connection, Exchange, RequestHeaders
from app.http.errors import error_parts
from app.observe.tracing.spans import CallSpan, Unrecorded

_REALTIME = CLASSES[0]
#: Statuses after which a connection closes: the rest of a body that came too late, and a server that may be going.
CLOSING = frozenset({408, 503})


class DirectCalls:
    """Implements protocol.Handler for the paths that infer."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.body_timeout_s = calls.limits.body_timeout_s
        self._routes: dict[bytes, Route] = {}
        self._begin = _KINDS[calls.access_log is not None, calls.tracer is not None]

    def take(self, connection: Connection, url: bytes, headers: RequestHeaders, length: int) -> Exchange | None:
        """The call that a plain POST begins. None for what the ASGI way does: other paths, and refusals that close."""
        calls = self.calls
        route = self._routes.get(url) or self._match(url)
        if route is None or len(connection.connections) > calls.limits.connections:
            return None
        if calls.keyed and calls.access.key_of(headers) is None:
            return None
        state = connection.app_state
        health: Health = state["health"]
        if health.closing:
            return None
        call = self._begin(connection, calls, route, url, headers, health)
        catalog: Catalog = state["catalog"]
        try:
            call.served = served = catalog.find(route.model, route.version)
            if X_CLASS in headers:
                call.klass = calls.klass(headers)
            most = calls.limits.inflight
            if (call.klass or served.info.batching.default_class) != _REALTIME:  # `most_held`, written out
                if len(connection.connections) > calls.limits.best_effort_connections:
                    return None
                most = calls.limits.best_effort_inflight
            if not served.has_room(call.klass):
                call.admitted = calls.admits(served, route.codec, call.klass)
            calls.bodies.reserve(length, most)
            call.held = length
        except NotReady:
            return None
        except Exception as exc:
            call.set_exception(exc)
        return call

    def _match(self, url: bytes) -> Route | None:
        if b"%" in url:  # rare: the ASGI way takes the target apart
            return None
        path, _, query = url.partition(b"?")
        route = self.calls.route(path.decode("latin-1"))
        if route is not None and query:
            try:
                route = route.with_query(query)
            except BadRequest:  # rare, too
                return None
        if route is not None and len(url) <= LONGEST_ROUTE:
            if len(self._routes) >= ROUTES:
                self._routes.clear()
            self._routes[url] = route
        return route


class DirectCall(Exchange):
    """One request; implements contract.Waiter. Answers exactly once, unless its client has gone."""

    __slots__ = (
        "admitted", "arrived", "call", "calls", "ended", "final", "headers", "health", "held", "klass", "lease",
        "request_id", "route", "served", "url",
    )  # fmt: skip

    span: CallSpan | Unrecorded | None = None  # of the class, so that a call which is not traced has nothing to set

    def __init__(
        self,
        connection: Connection,
        calls: Calls,
        route: Route,
        url: bytes,
        headers: RequestHeaders,
        health: Health,
    ) -> None:
        # Exchange's own __init__, written out: a call more costs a tenth of a microsecond.
        self.connection = connection
        self.keep_alive = True
        self.disconnected = self.response_complete = self.whole = self.refused = False
        self.arrived = time.monotonic_ns()
        self.calls = calls
        self.route = route
        self.url = url
        self.headers = headers
        self.health = health
        self.request_id = calls.request_id(headers) if b"x-request-id" in headers else calls.new_id()
        self.served: Served | None = None
        self.call: DecodedCall | None = None
        self.lease: Lease | None = None
        self.klass = ""  # the model's default
        self.admitted = True  # False: the queue is full, unless the body names the other class
        self.held = 0  # bytes of the body that count as held
        self.ended = False  # the answer has been given
        self.final = False  # it is one after which a connection closes

    # told by the protocol

    def received(self, body: bytes) -> bool:
        if self.refused:
            return True
        served, calls, codec = self.served, self.calls, self.route.codec
        assert served is not None  # `take` found it
        try:
            if not self.admitted and not codec.may_name_class(body):
                served.admit(0, self.klass)
            if served.model.front is not None or codec.slow_to_decode(served, self.headers, body):
                self._release()
                self.served = None  # the ASGI way finds it again
                return False
            self.call = call = codec.decode(served, self.headers, body, calls.limits)
            if call.klass:
                self.klass = call.klass
            self.lease = lease = calls.lease(served, call, self.route.asked, self.klass, self.arrived, self.headers)
            for index, values in enumerate(call.arrays):
                lease.write(index, values)
            lease.submit(self)
        except NotReady as exc:
            if self._replaced():
                return self.received(body)
            self.set_exception(exc)
        except Exception as exc:
            self.set_exception(exc)
        return True

    def _replaced(self) -> bool:
        """Whether the model was loaded anew since the head came: the call is then for the version that serves now."""
        before, catalog = self.served, cast("Catalog", self.connection.app_state["catalog"])
        with suppress(StarlingError):
            self.served = catalog.find(self.route.model, self.route.version)
        return self.served is not before

    def late(self) -> None:
        self.set_exception(BodyTimeout(f"the body did not arrive within {self.calls.limits.body_timeout_s:g} s"))

    def left(self) -> None:
        self.set_exception(ClientGone("the client went away before its answer"))

    def closes(self) -> bool:
        return self.final or self.health.closing

    # told by the engine

    def done(self) -> bool:
        return self.ended

    def set_result(self, answer: Answer) -> None:
        """The batch has ended: encode the outputs and answer. Raises nothing."""
        self._release()
        served, call, codec = self.served, self.call, self.route.codec
        assert served is not None  # see `take` and `received`
        assert call is not None
        try:
            if codec.slow_to_encode(served, call):
                self._in_a_task(self._encoded(served, call, answer))
                return
            body, json_length = codec.encode(served, call, answer)
            if len(body) < COMPRESS_FROM:
                self._write(answer, body, json_length, None)
            else:
                self._answer(answer, body, json_length)
        except Exception as exc:
            self.set_exception(exc)

    def set_exception(self, exc: Exception) -> None:
        """Answer with an error; nothing is written where the client has gone."""
        if self.ended:
            return
        self.ended = True
        self._release()
        self.calls.failed(exc, self.served, self.klass, self.request_id, self.arrived, self.url.decode("latin-1"))
        status, lines, body = error_parts(exc)
        self.final = status in CLOSING
        lines.append((b"x-request-id", self.request_id))
        if self.span is not None:
            info = None if self.served is None else self.served.info
            lines.append((b"traceparent", self.span.failed(info, self.klass, exc, status)))
        self.served = self.call = None  # see `_write`
        head = b"".join([b"%s: %s\r\n" % line for line in lines])
        turns = self.calls.turns
        if status < ClientGone.status and turns.needed():
            self.refused = True
            turns.wait(self.connection.loop, partial(self.connection.send_answer, self, status, head, body))
        else:
            self.connection.send_answer(self, status, head, body)

    # inside

    def _release(self) -> None:
        """Nothing of the request is needed any more but its answer."""
        if self.held:
            self.calls.bodies.release(self.held)
            self.held = 0
        lease = self.lease
        if lease is not None:
            self.lease = None  # the two refer to one another: cut, so that the cycle collector has no work
            lease.close()

    def _answer(self, answer: Answer, body: bytes, json_length: int | None) -> None:
        encoding = wanted_encoding(self.headers.get(b"accept-encoding"), len(body))
        if encoding is None:
            self._write(answer, body, json_length, None)
        elif len(body) <= QUICK_TO_COMPRESS:
            self._write(answer, compress(body, encoding), json_length, encoding)
        else:
            self._in_a_task(self._compressed(answer, body, json_length, encoding))

    def _write(self, answer: Answer, body: bytes, json_length: int | None, encoding: str | None) -> None:
        served = self.served
        if not self.ended:  # the client may have gone while a thread was at work
            assert served is not None  # see `received`
            self.ended = True
            # The connection keeps this object until its next request, and would keep a model that is gone by then.
            self.served = self.call = None
            head = self.calls.succeeded(
                served, self.klass, self.request_id, self.arrived, answer, body, json_length, encoding
            )
            if self.span is not None:
                head += TRACEPARENT % self.span.succeeded(served.info, self.klass, answer)
            self.connection.send_answer(self, 200, head, body)

    def _in_a_task(self, work: Coroutine[Any, Any, None]) -> None:
        """Go on in a task, which the server waits for when it stops."""
        tasks = self.connection.tasks
        task = self.connection.loop.create_task(self._guarded(work))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as exc:
            self.set_exception(exc)

    async def _encoded(self, served: Served, call: DecodedCall, answer: Answer) -> None:
        threads, best_effort = self.calls.threads, self.calls.best_effort(served, self.klass)
        body, json_length = await threads.run(best_effort, self.route.codec.encode, served, call, answer)
        self._answer(answer, body, json_length)

    async def _compressed(self, answer: Answer, body: bytes, json_length: int | None, encoding: str) -> None:
        served = self.served  # None: the client has gone
        best_effort = served is None or self.calls.best_effort(served, self.klass)
        compressed = await self.calls.threads.run(best_effort, compress, body, encoding)
        self._write(answer, compressed, json_length, encoding)


class LoggedCall(DirectCall):
    """A request of a server that writes an access log; where there is none, it costs nothing."""

    __slots__ = ()

    def set_exception(self, exc: Exception) -> None:
        ended, served, call = self.ended, self.served, self.call
        super().set_exception(exc)
        if not ended:
            self._log(error_parts(exc)[0], served, call)

    def _write(self, answer: Answer, body: bytes, json_length: int | None, encoding: str | None) -> None:
        ended, served, call = self.ended, self.served, self.call
        super()._write(answer, body, json_length, encoding)
        if not ended:
            self._log(200, served, call)

    def _log(self, status: int, served: Served | None, call: DecodedCall | None) -> None:
        line = Line()
        rows = call.rows if call is not None else 0
        line.about(self.request_id, self.route.model, served, rows, self.klass)
        assert self.calls.access_log is not None  # see DirectCalls
        path = self.url.partition(b"?")[0]
        self.calls.access_log.write("POST", path, status, self.arrived, self.connection.client, line)


class TracedCall(DirectCall):
    """A call of a server that traces. A class of its own: a call of one that does not pays nothing for it."""

    __slots__ = ("span",)

    def __init__(
        self,
        connection: Connection,
        calls: Calls,
        route: Route,
        url: bytes,
        headers: RequestHeaders,
        health: Health,
    ) -> None:
        super().__init__(connection, calls, route, url, headers, health)
        assert calls.tracer is not None  # see DirectCalls
        self.span = span = calls.tracer.begin(headers, self.arrived)
        if isinstance(span, CallSpan):
            path = url.partition(b"?")[0].decode("latin-1")
            span.asks("POST", path, route.template, route.model, self.request_id)

    def received(self, body: bytes) -> bool:
        taken = super().received(body)
        if isinstance(self.span, CallSpan) and self.lease is not None and self.calls.tracer is not None:
            self.calls.tracer.submitted(self.span, self.lease)  # its first batch starts at the end of this turn
        return taken


class LoggedTracedCall(LoggedCall, TracedCall):
    """Of a server that does both."""

    __slots__ = ()


#: By whether there is an access log, and whether calls are traced.
_KINDS: dict[tuple[bool, bool], type[DirectCall]] = {
    (False, False): DirectCall,
    (True, False): LoggedCall,
    (False, True): TracedCall,
    (True, True): LoggedTracedCall,
}
