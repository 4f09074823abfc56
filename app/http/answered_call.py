"""The state of a call, and how it is answered: with the outputs of its rows, or with an error.

When the rows have ended, the engine calls `set_result` on the event loop. It encodes the outputs and passes the answer
to the connection. A task is only made for slow work: a model's own code, or compression of a large answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import Any

from app.contract import CLASSES, Answer, Lease, Served
from app.errors import BodyTimeout, ClientGone, MethodNotAllowed, NotReady, TooLarge, TooManyConnections
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
from app.http.body import RequestHeaders, client_request_id
from app.http.codecs.base import DecodedCall, encode, slow_to_encode
from app.http.connection.connection import Carrier, Exchange
from app.http.errors import error_parts
from app.http.inference_routes import NO_OPTIONS, Route
from app.http.resources import Resources, log

REALTIME = CLASSES[0]
#: Statuses after which a connection closes: the rest of a body that came too late, and a server that may be going.
_CLOSING = frozenset({408, 503})


class AnsweredCall(Exchange):
    """The half of `Call` that answers: exactly once, through its connection. Implements contract.Waiter."""

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
        """`url`: as the client sent it. `path`: see CallObserver."""
        super().__init__(connection)
        self.arrived = time.monotonic_ns()
        self.resources = resources
        self.route = route
        self.url = url
        self.headers = headers
        self.request_id: bytes = (client_request_id(headers) if b"x-request-id" in headers else None) or (
            resources.id_format % next(resources.ids)
        )
        self.options = NO_OPTIONS  # from the query string
        self.served: Served | None = None
        self.decoded: DecodedCall | None = None
        self.lease: Lease | None = None
        self.klass = ""  # the model's default
        self.admitted = True  # False: the queue of the default class is full, but the body may name the other class
        self.held = 0  # bytes of the body that count as held
        self.ended = False  # the answer has been given
        self.observer: CallObserver | None = None
        if resources.observed:
            self.observer = CallObserver(
                resources.access_log, resources.tracer, route, headers, method=method, url=url, path=path,
                request_id=self.request_id, arrived=self.arrived, client=connection.client,
            )  # fmt: skip

    def done(self) -> bool:
        return self.ended

    def set_result(self, answer: Answer) -> None:
        """The engine calls this when the rows have ended: encode the outputs and answer. Raises nothing."""
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
            self.observer = None  # called once: if it raises, the error is answered without it
            head += observer.succeeded(served, self.klass, decoded.rows, answer)
        if self.resources.cors is not None:
            head += self.resources.cors.lines(self.headers.get(b"origin"))
        self.ended = True  # set last: anything raised above is answered as an error
        # The connection keeps this object until its next request. It must not keep an unloaded model alive.
        self.served = self.decoded = None
        served.finish("ok", total, self.klass)
        if log.isEnabledFor(logging.DEBUG):
            name = served.info.name
            log.debug("%s %s: ok, %.3f ms, batch %d", self.request_id.decode(), name, total / 1e6, answer.batch)
        self.connection.send_answer(self, 200, head, body)

    def set_exception(self, exc: Exception) -> None:
        """Answer with an error. Nothing is written if the client has disconnected."""
        if self.ended:
            return
        self.ended = True
        self.release()
        self.resources.count_failure(exc, self.served, self.klass, self.request_id, self.arrived, self.url)
        status, lines, body = error_parts(exc, self.route.openai)
        # A too large chunked body may never end, so the connection closes. A body of a declared length is read to its
        # end and dropped: a client that still sends would otherwise see a reset connection instead of the answer.
        endless = status == TooLarge.status and b"content-length" not in self.headers
        self.closes = endless or status in _CLOSING or isinstance(exc, TooManyConnections)
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
            self.refusal_delayed = True
            refusals.wait(self.connection.loop, partial(self.connection.send_answer, self, status, head, body))
        else:
            self.connection.send_answer(self, status, head, body)

    def on_body_timeout(self) -> None:
        limit_s = self.resources.limits.body_timeout_s
        self.set_exception(BodyTimeout(f"the body did not arrive within {limit_s:g} s"))

    def on_disconnect(self) -> None:
        self.set_exception(ClientGone("the client went away before its answer"))

    def release(self) -> None:
        """Free the body's bytes and the slots. Called when only the answer is still needed."""
        if self.held:
            self.resources.bodies.held -= self.held
            self.held = 0
        lease = self.lease
        if lease is not None:
            self.lease = None  # breaks a reference cycle, so that the garbage collector has no work
            lease.close()

    @property
    def best_effort(self) -> bool:
        """Whether it belongs to the best-effort class; False if no model was found."""
        served = self.served
        return served is not None and (self.klass or served.info.batching.default_class) != REALTIME

    # slow work: tasks, and the helper threads

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        tasks = self.connection.tasks
        task = self.connection.loop.create_task(self._guarded(work))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as exc:
            self.set_exception(exc)
        except asyncio.CancelledError:
            self.on_disconnect()
            raise

    async def encode_slowly(self, served: Served, decoded: DecodedCall, answer: Answer) -> None:
        threads, codec = self.resources.threads, self.route.codec
        body, json_length = await threads.run(self.best_effort, encode, served, codec, decoded, answer)
        self.compress_and_succeed(served, answer, body, json_length)

    async def compress_slowly(
        self, served: Served, answer: Answer, body: bytes, json_length: int | None, encoding: str
    ) -> None:
        compressed = await self.resources.threads.run(self.best_effort, compress, body, encoding)
        self.succeed(served, answer, compressed, json_length, encoding)
